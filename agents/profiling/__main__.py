"""`python -m agents.profiling`: one bench, see `bench`."""

import sys

from agents.profiling.bench import main

if __name__ == "__main__":
    sys.exit(main())
