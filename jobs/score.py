"""Score answers with a reward: python -m jobs.score --jsonl F [--reward R | --task DIR] [--option K=V ...]"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["score", *sys.argv[1:]]))
