"""Sessions of their own: a pooler that gives connections none is refused at the start, in one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from app.db.base.listen import check_sessions
from tests.integration.poolers import pooled
from tests.ports import own_environment
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


def run(url: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = own_environment("XDG_") | {
        "PLIMSOLL_DATABASE_URL": url,
        "PLIMSOLL_DATA_DIR": str(folder / "data"),
        "HOME": str(folder),
    }
    program = "import sys; from app.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_postgresql_itself_gives_sessions(database: str) -> None:
    assert check_sessions(database) is None


def test_a_pooler_in_session_mode_will_do(database: str, tmp_path: Path) -> None:
    with pooled(database, tmp_path, "session") as url:
        assert check_sessions(url) is None


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("pool_size", [1, 20])
def test_other_modes_are_refused_with_the_one_that_is_needed(
    database: str, tmp_path: Path, mode: str, pool_size: int
) -> None:
    with pooled(database, tmp_path, mode, default_pool_size=pool_size) as url:
        problem = check_sessions(url)
    assert problem is not None and "pool_mode = session" in problem


def test_a_pooler_that_takes_no_settings_is_refused_with_the_remedy(
    database: str, tmp_path: Path
) -> None:
    settings = {"ignore_startup_parameters": "extra_float_digits"}
    with pooled(database, tmp_path, "session", **settings) as url:
        problem = check_sessions(url)
    assert problem is not None and "ignore_startup_parameters = options" in problem


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "--port", "0"),
        pytest.param(("controller",), marks=pytest.mark.thorough),
        pytest.param(("up", "--nodes", "0"), marks=pytest.mark.thorough),
    ],
)
def test_what_holds_sessions_does_not_start_behind_such_a_pooler(
    database: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with pooled(database, tmp_path, "transaction") as url:
        done = run(url, tmp_path, *command)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1, done.stderr
    assert last.startswith("Error: ") and "pool_mode = session" in last
    assert "Traceback" not in done.stderr
