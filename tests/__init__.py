"""Tests: the tree of the library, mirrored; their names are its rules."""
