"""Task families that ship, one file each: procedural problems. pyproject.toml registers them."""
