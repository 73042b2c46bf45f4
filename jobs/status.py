"""Show a search from its journal: python -m jobs.status SEARCH [--log] [--offline]"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["status", *sys.argv[1:]]))
