"""`plimsoll up`: its data directory before anything is started, and the end of its nodes."""

import asyncio
import socket
from pathlib import Path

import pytest

from app.base.errors import PlimsollError
from app.base.settings import Settings
from app.db.base.engine import make_engine
from app.postgres.files import claim
from app.serve.local_gateway import find_gateway
from app.serve.plane import make_plane
from app.serve.up import (
    Terminal,
    first_token,
    free_port,
    run_everything,
)


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


def test_a_node_s_router_gets_another_port_where_the_usual_one_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        usual = taken.getsockname()[1]
        assert free_port("127.0.0.1", usual) not in (0, usual)
    assert free_port("127.0.0.1", usual) == usual


@pytest.mark.integration
@pytest.mark.parametrize("is_taken", [False, True])
def test_each_start_says_where_the_first_admin_s_token_is(
    database: str, tmp_path: Path, *, is_taken: bool
) -> None:
    saved = tmp_path / "config" / "token"
    saved.parent.mkdir()
    if is_taken:
        saved.write_text("plim_admin_of-another-control-plane\n", encoding="utf-8")
    plane = make_plane(Settings(data_dir=tmp_path / "data"), database)
    said: list[str] = []

    async def start() -> None:
        engine = make_engine(database, pool_size=1)
        terminal = Terminal(say=said.append, is_seen=False)
        try:
            await first_token(engine, plane, saved, terminal)
        finally:
            await engine.dispose()

    asyncio.run(start())
    expected = tmp_path / "data" / "admin-token" if is_taken else saved
    assert str(expected) in said[0]
    said.clear()
    asyncio.run(start())
    assert said == [
        f"admin token, kept by an earlier start: export PLIMSOLL_TOKEN_FILE={expected}"
    ]


def test_where_haproxy_could_not_have_its_socket_there_is_no_gateway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = "agents.router.haproxy.supervised.find_program"
    monkeypatch.setattr(place, lambda _path: Path("/usr/sbin/haproxy"))
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.chdir(deep)
    said: list[str] = []
    assert find_gateway(Settings(data_dir=Path(".plimsoll")), said.append) is None
    assert said[0].startswith("no gateway: choose a --data-dir with a shorter path")
