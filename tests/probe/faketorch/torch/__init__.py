"""A stand-in with the few names that the probe reads: imports in a millisecond."""

__version__ = "0.fake"
