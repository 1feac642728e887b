"""A stand-in with the few names that the probe reads: imports in a millisecond."""

from .version import __version__ as __version__
