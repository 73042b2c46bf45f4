"""The page of a search: `report.html` in one file, and `llmzero ui`, which shows the same while it runs."""
