"""Start, attach to or resume a search: python -m jobs.search CONFIG [--set KEY=VALUE ...]

From a folder of data: python -m jobs.search FOLDER SENTENCE --yes [--base CONFIG] [--set KEY=VALUE ...]
"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["search", *sys.argv[1:]]))
