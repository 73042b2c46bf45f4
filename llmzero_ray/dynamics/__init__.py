"""Conclusions from the curves, scores and answers of a phase."""
