"""Send recorded requests to the agents' model and score its answers: python -m jobs.prompt_eval [OPTIONS]"""

import sys

from llmzero_ray.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prompt-eval", *sys.argv[1:]]))
