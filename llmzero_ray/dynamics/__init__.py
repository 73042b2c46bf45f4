"""Analysis of the curves, scores and answers of phases."""
