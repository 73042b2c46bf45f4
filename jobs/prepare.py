"""Make the task of a configuration: python -m jobs.prepare CONFIG [--set KEY=VALUE ...]"""

import sys

from actors.cli import main

if __name__ == "__main__":
    sys.exit(main(["prepare", *sys.argv[1:]]))
