"""Start of a search: checks, and access to the actors and to the machines of a cluster."""
