"""Users without a home or a name, as platforms of containers make them up, and homes that belong to others."""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from agents.gateway.command import make_parser
from app.cli.common.context import CliContext
from tests.app.runner import cli
from tests.ports import own_environment
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
MADE_UP = "1000680000"
"""As OpenShift gives them to Pods."""
COMMANDS = (
    "get nodes",
    "version",
    "config show",
    "config get-contexts",
    "config set-context here --url http://plane",
    "doctor",
    "db check",
    "db upgrade",
    "gateway --help",
    "gateway --url http://127.0.0.1:1 --token-file {token} --port 1",
    "agent --help",
    "apply -f {root}/docs/examples/quickstart.yaml",
    "relay http://127.0.0.1:1 --kind vllm",
    "up --nodes 0",
)


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_has_the_root_directory() -> None:
    assert CliContext.of_process().home == Path("/")
    options = make_parser().parse_args(["--url", "http://a", "--token-file", "t"])
    assert options.state_dir == Path("/.plimsoll/gateway")


@pytest.mark.usefixtures("homeless")
def test_a_path_in_no_home_is_refused_with_the_remedy(tmp_path: Path) -> None:
    result = cli("config set-context here --token-file ~/token", home=tmp_path)
    assert result.code == 1
    assert "cannot tell what ~/token means" in result.err
    assert "set HOME" in result.err


def test_a_home_that_is_not_a_folder_is_none(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    result = cli("config show", environment={}, home=file / "below")
    assert result.code == 0, result.err


def test_a_wrong_name_of_a_local_token_is_an_error_that_names_it(
    tmp_path: Path,
) -> None:
    result = cli("token create --local --scope admin ME", home=tmp_path)
    assert result.code == 1
    assert result.err.startswith("Error: name: ") and "'ME'" in result.err


def as_made_up_user(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    token = folder / "token"
    token.write_text("secret", encoding="utf-8")
    environment = own_environment("HOME", "XDG_") | {
        "PLIMSOLL_TOKEN_FILE": str(token),
        "PLIMSOLL_URL": "http://127.0.0.1:1",
        "PLIMSOLL_DATA_DIR": str(folder / "data"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(ROOT),
    }
    # The interpreter itself may lie in another user's home.
    user = (f"--reuid={MADE_UP}", "--regid=0", "--clear-groups")
    may_read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    program = "import sys; from app.cli.main import main; sys.exit(main())"
    words = command.format(token=token, root=ROOT).split()
    return subprocess.run(
        ["setpriv", *user, *may_read, sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.integration
@pytest.mark.thorough
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can become somebody else",
)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_of_a_user_without_home_and_name_ends_in_a_traceback(
    tmp_path: Path, command: str
) -> None:
    tmp_path.chmod(0o777)
    done = as_made_up_user(tmp_path, command)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert done.returncode in (0, 1), said
    if command in ("db upgrade", "up --nodes 0"):
        assert "/etc/passwd" in said and "PLIMSOLL_DATABASE_URL" in said
