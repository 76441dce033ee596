"""Before anything is started: the data directory of `plimsoll up`."""

import socket
from pathlib import Path

import pytest

from app.base.errors import PlimsollError
from app.base.settings import Settings
from app.postgres.files import claim
from app.serve.up import Terminal, run_everything


def up_where_the_port_is_taken(data_dir: Path) -> None:
    """An `up` with a database elsewhere that gets as far as its socket."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(data_dir=data_dir, port=taken.getsockname()[1])
        run_everything(
            settings,
            "postgresql+psycopg://nowhere",
            nodes=0,
            token_path=data_dir / "token",
            terminal=Terminal(say=print, is_seen=False),
        )


def test_a_data_directory_that_was_used_with_a_database_elsewhere_may_hold_the_embedded_one_later(
    tmp_path: Path,
) -> None:
    data_dir = tmp_path / "data"
    with pytest.raises(PlimsollError, match="cannot listen"):
        up_where_the_port_is_taken(data_dir)
    assert (data_dir / "up.lock").exists()
    assert claim(data_dir).root == data_dir.resolve()


def test_a_directory_with_files_of_strangers_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    with pytest.raises(PlimsollError, match="was not made by Plimsoll"):
        up_where_the_port_is_taken(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
