"""As in torch."""

__version__ = "2.13.0+fake"
