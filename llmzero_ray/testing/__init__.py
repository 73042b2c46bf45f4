"""Contracts as classes of tests, for implementations inside and outside this project. Needs pytest."""
