"""One system's tables, in a process of its own: `python -m bench.papers.single MODULE OUT [--quick]` pickles them."""

import argparse
import pickle
from importlib import import_module
from pathlib import Path

from bench.papers.table import Table


def main() -> None:
    """Make the tables and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.papers.single", description=__doc__
    )
    parser.add_argument("module")
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    tables: tuple[Table, ...] = tuple(
        import_module(f"bench.papers.{options.module}").tables(options.quick)
    )
    options.out.write_bytes(pickle.dumps(tables))


if __name__ == "__main__":
    main()
