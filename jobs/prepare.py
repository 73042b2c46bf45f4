"""Make the task of a task.yaml or search.yaml: python -m jobs.prepare CONFIG [--set KEY=VALUE ...] [--ray]"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prepare", *sys.argv[1:]]))
