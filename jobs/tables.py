"""The paper's tables and figures from any searches: python -m jobs.tables RUN... [--out DIR]"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["tables", *sys.argv[1:]]))
