"""The version of this library, for whoever must not import the whole of it."""

__version__ = "0.2.0"
