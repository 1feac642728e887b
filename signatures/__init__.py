"""The reading side: cross-rank analysis, the matcher, the library, reports."""
