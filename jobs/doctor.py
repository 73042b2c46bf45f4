"""Check a cluster against a configuration: python -m jobs.doctor CONFIG [--set KEY=VALUE ...] [--no-step]"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["doctor", *sys.argv[1:]]))
