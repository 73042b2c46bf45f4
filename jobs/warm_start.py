"""Teach a base model the gold answers of a task: python -m jobs.warm_start CONFIG [--set KEY=VALUE ...]"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["warm-start", *sys.argv[1:]]))
