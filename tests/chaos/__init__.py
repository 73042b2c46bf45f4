"""Searches whose processes are killed while they run, and what must hold afterwards."""
