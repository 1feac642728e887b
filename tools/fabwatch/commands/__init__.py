"""One module for each command, found by listing this folder; each holds `command`.

Nothing heavy at the top of a module: all of them are imported for `fabwatch --help`, so rich,
msgspec, psutil and the analysis are imported inside the functions that need them.
"""
