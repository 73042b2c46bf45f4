"""End a search and write its report: python -m jobs.stop SEARCH"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["stop", *sys.argv[1:]]))
