"""When to end a phase early: rules over reported numbers, then the early-stopper agent."""
