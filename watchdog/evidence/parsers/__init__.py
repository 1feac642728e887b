"""Parsers: one file for each kind of raw artefact, found by listing this folder."""
