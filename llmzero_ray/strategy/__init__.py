"""Use of a search's best strategy: train it again, export it, merge it or publish it."""
