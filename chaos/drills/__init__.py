"""Drills: one trial is one fault in one real job, wrapped, and what came of it."""
