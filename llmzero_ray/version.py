"""Library version. This module imports nothing."""

__version__ = "0.2.0"
