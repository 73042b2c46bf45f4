"""Serve your own model for the agents: python -m jobs.serve MODEL [--gpus N] [-- VLLM OPTIONS]"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
