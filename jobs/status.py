"""Show a search from its journal: python -m jobs.status SEARCH [--log] [--offline]"""

import sys

from actors.cli import main

if __name__ == "__main__":
    sys.exit(main(["status", *sys.argv[1:]]))
