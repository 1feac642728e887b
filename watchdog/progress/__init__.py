"""Decide whether a job moves: pages, counters, phases, thresholds."""
