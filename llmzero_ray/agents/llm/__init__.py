"""Language-model agents: their contexts, structured requests and budget."""
