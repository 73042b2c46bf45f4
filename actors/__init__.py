"""Thin shells around the library: receive, call it, carry out. `app.py` wires them."""
