"""Ray actors as thin shells around the library: they receive, call the library, and carry out. `app.py` wires
them."""
