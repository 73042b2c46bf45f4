"""`python -m llmzero_ray.cli COMMAND`: the command `llmzero` if its script is not installed."""

import sys

from llmzero_ray.cli.main import main

sys.exit(main())
