"""`python -m agents.serving`: one worker, see `arguments`."""

import sys

from agents.serving.arguments import main

if __name__ == "__main__":
    sys.exit(main())
