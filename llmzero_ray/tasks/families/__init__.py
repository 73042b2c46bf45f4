"""Task families that ship: procedural problems, one file each; registry.py finds them by name."""
