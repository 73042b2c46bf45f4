"""`python -m llmzero_ray.cli COMMAND`: the command `llmzero` where it is not installed as a script."""

import sys

from llmzero_ray.cli.main import main

sys.exit(main())
