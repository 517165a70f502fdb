"""autosplit: a PyTorch model in, a verified pipeline out."""

__version__ = "0.1.0"
