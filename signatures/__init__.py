"""The reading side: cross-rank analysis, the matcher, the library, reports."""

from __future__ import annotations

from fabwatch.watchdog.evidence import shapes


def _library_shapes() -> None:
    """Let readers of text know the shapes that the built-in library declares."""
    from fabwatch.signatures.loader import LibraryError, load

    try:
        load()
    except LibraryError:
        return  # whoever diagnoses gets to see it


shapes.provide(_library_shapes)
