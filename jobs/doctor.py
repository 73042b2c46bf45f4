"""Check a cluster against a configuration: python -m jobs.doctor CONFIG [--set KEY=VALUE ...] [--no-step]"""

import sys

from actors.cli import main

if __name__ == "__main__":
    sys.exit(main(["doctor", *sys.argv[1:]]))
