"""Commands that make tasks: prepare, draft, score, warm-start."""
