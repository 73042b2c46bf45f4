"""What the curves, scores and answers of a phase show."""
