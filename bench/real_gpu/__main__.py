"""`python -m bench.real_gpu STEP --out DIR --budget-s N`: see `commands`."""

import sys

from bench.real_gpu.commands import main

if __name__ == "__main__":
    sys.exit(main())
