"""Draft a task from a folder of data: python -m jobs.draft FOLDER SENTENCE --out DIR [OPTIONS]"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["draft", *sys.argv[1:]]))
