"""Writes the OpenAPI document: `python -m tools.documents.openapi [--check]`; `--check` exits 1 when the file is
stale."""

import argparse
import json
import sys
from pathlib import Path

from app.api.application import make_api

PATH = Path(__file__).resolve().parents[2] / "openapi" / "plimsoll.json"


def openapi_text() -> str:
    """The document as it belongs in the file."""
    return (
        json.dumps(make_api().openapi(), indent=2, sort_keys=True, ensure_ascii=False)
        + "\n"
    )


def is_stale(path: Path = PATH) -> bool:
    """Whether the file differs from what the code says."""
    return not path.exists() or path.read_text() != openapi_text()


def main() -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit 1 when the file is stale",
    )
    if parser.parse_args().check:
        return int(is_stale())
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(openapi_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
