"""Explain the decisions of a search: python -m jobs.explain DIR | --history H.json | --closed-loop R.json"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["explain", *sys.argv[1:]]))
