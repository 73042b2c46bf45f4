"""Early stopping of phases: rules over reported numbers, then the early-stopper agent."""
