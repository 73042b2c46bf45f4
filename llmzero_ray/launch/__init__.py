"""Start of a search: checks, the Ray head, the actors, and the machines of a cluster."""
