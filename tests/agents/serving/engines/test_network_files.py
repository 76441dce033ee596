"""Which files a worker loads."""

from pathlib import Path

import pytest

from agents.base.device import LaunchFailed
from agents.serving.engines.engine import file_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a file, a folder and links, and a file next to it."""
    made = tmp_path / "networks"
    (made / "deep").mkdir(parents=True)
    (made / "deep" / "net.onnx").touch()
    (tmp_path / "secret").touch()
    (made / "inside").symlink_to(made / "deep" / "net.onnx")
    (made / "outside").symlink_to(tmp_path / "secret")
    (made / "loop").symlink_to(made / "loop")
    return made


@pytest.mark.parametrize("name", ["deep/net.onnx", "deep/../deep/net.onnx", "inside"])
def test_files_of_the_directory_are_found(folder: Path, name: str) -> None:
    assert file_in(folder, name) == folder.resolve() / "deep" / "net.onnx"


@pytest.mark.parametrize(
    "name",
    ["../secret", "outside", "/etc/passwd", "absent", "deep", ".", "", "loop", "a\0b"],
)
def test_nothing_else_is(folder: Path, name: str) -> None:
    with pytest.raises(LaunchFailed):
        file_in(folder, name)


def test_without_a_directory_there_are_no_files() -> None:
    with pytest.raises(LaunchFailed, match="--network-dir"):
        file_in(None, "net.onnx")
