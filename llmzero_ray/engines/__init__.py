"""What trains a phase: the protocol in base.py, real VeRL in verl/."""
