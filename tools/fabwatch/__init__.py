"""fabwatch: say why a distributed PyTorch job hung, and break one on purpose to prove it."""

__version__ = "0.1.0"
