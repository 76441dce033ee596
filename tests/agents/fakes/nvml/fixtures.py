"""Fixtures of the fake driver; a test file takes them by importing `fake` and `library`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.fakes.nvml.fake_gpus import (
    STATE_VARIABLE,
    FakeGpus,
    build_library,
    end_sessions,
    use_here,
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the fake libnvidia-ml.so.1."""
    try:
        return build_library(tmp_path_factory.mktemp("fake_nvml"))
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def fake(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeGpus]:
    """Two GPUs that this process and those that it starts with `fake.environment(library)` share."""
    if not use_here(library):
        pytest.skip("a real libnvidia-ml.so.1 is loaded in this process")
    gpus = FakeGpus(tmp_path / "gpus", count=2)
    monkeypatch.setenv(STATE_VARIABLE, str(gpus.path))
    yield gpus
    end_sessions()
