"""Compare search methods on tasks and seeds: python -m jobs.compare compare.yaml"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]]))
