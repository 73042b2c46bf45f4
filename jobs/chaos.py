"""Kill processes of searches and check that nothing is lost: python -m jobs.chaos --kills 200 [--seed 1]"""

import sys


def main() -> int:
    """Run in a checkout only, because the chaos run is part of the tests."""
    from tests.chaos.run import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
