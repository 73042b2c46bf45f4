"""The suite's own task families; the others are those that ship. Recipes and first figures: see tasks.py."""
