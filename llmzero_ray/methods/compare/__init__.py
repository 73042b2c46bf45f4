"""`llmzero compare`: runs search methods on tasks and seeds as ordinary searches, and makes their tables."""
