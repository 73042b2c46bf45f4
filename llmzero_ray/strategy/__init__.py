"""Uses of a search's best strategy: train it again, export, merge or publish it."""
