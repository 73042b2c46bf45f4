"""`llmzero tables`: counterparts of the paper's tables and figures from any searches."""
