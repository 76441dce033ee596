"""What most tests of the control plane begin with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # A test that needs no control plane does not wait for its imports.
    from tests.integration.api_harness import Api, Prepared


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    """The application on a small fleet of its own; a module that needs another one says so."""
    with small_fleet.running_api() as running:
        yield running
