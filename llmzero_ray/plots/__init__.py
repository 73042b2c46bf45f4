"""One matplotlib style for the figures of reports and of agents."""
