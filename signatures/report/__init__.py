"""Verdicts for people: terminal screen, summary.md, verdict.json."""
