"""Collectors: one file for each source of raw evidence, found by listing this folder."""
