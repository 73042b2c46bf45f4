"""Who diagnoses, proposes, stops and debugs: the protocols in base.py, the offline rules in expert/."""
