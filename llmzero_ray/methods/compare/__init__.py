"""`llmzero compare`: search methods on tasks and seeds, each run an ordinary search, and their tables."""
