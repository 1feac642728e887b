"""Verdicts for people: terminal screen, summary.md, and the files of an incident or a run."""
