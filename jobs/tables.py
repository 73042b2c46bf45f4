"""Write the paper's tables and figures from searches: python -m jobs.tables RUN... [--out DIR]"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["tables", *sys.argv[1:]]))
