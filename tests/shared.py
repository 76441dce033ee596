"""The folder `../shared` next to the checkout; tests that need a part of it are skipped where that part is missing."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def needs(*parts: str) -> pytest.MarkDecorator:
    """Skip a test where one of these files or folders of `../shared` is missing."""
    missing = [part for part in parts if not (SHARED / part).exists()]
    return pytest.mark.skipif(
        bool(missing), reason=f"not next to this checkout: {', '.join(missing)}"
    )
