"""Measurements of speed and quality, as ratios within one run; nothing here is a test."""
