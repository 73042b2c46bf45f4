"""Text only: what agents are told, and human knowledge about metrics and hyper-parameters."""
