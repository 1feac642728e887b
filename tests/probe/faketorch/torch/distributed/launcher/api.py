"""Imported by launchers only."""
