"""Who workers run as, and that what such a user puts into its folder leads the agent nowhere."""

import argparse
import asyncio
import os
import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from agents.base.arguments import add_worker_users
from agents.base.device import DeviceError
from agents.gpu.mps.daemon import Mps
from agents.gpu.node.open import GpuNodeSettings
from agents.processes.templates import tool_environment
from agents.processes.user import (
    DEFAULT_USER,
    WorkerUser,
    WorkerUsers,
    find_project_users,
    find_worker_user,
    give_folder,
    make_folder,
    read_file,
    require_reach,
    write_file,
)
from tests.agents.gpu_nodes import OWN_USER

FOLDERS = Path("/workers")
NOBODY = WorkerUser(
    name="nobody", uid=65534, gid=65534, groups=(65534,), home="/", folders=FOLDERS
)
only_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may give files to another user"
)


def test_the_agents_own_user_is_no_other_user() -> None:
    assert find_worker_user(OWN_USER, FOLDERS) is None
    assert find_project_users((), None, uses_mps=True) == {}
    with pytest.raises(DeviceError, match="there is no user 'n-o-b-o-d-y'"):
        find_worker_user("n-o-b-o-d-y", FOLDERS)


@only_root
def test_root_runs_no_replica_as_root_unless_it_is_told_to() -> None:
    try:
        pwd.getpwnam(DEFAULT_USER)
    except KeyError:
        with pytest.raises(DeviceError, match="replicas would run as root"):
            find_worker_user("", FOLDERS)
    else:
        found = find_worker_user("", FOLDERS)
        assert found is not None
        assert found.name == DEFAULT_USER


def test_who_runs_as_another_user_is_replaced_but_not_under_mps(tmp_path: Path) -> None:
    own = replace(NOBODY, name="daemon", uid=1)
    users = WorkerUsers(default=NOBODY, by_project={"team-a": own})
    assert users.uids() == {"": 65534, "team-a": 1}
    # Also where no project has a user of its own any more, and after --worker-user root.
    assert WorkerUsers(default=NOBODY).uids() == {"": 65534}
    assert WorkerUsers().uids() == {"": os.geteuid()}
    by_turns = GpuNodeSettings(
        state_dir=tmp_path, mps_dir=tmp_path, users=users, uses_mps=False
    )
    assert by_turns.uids == users.uids()
    assert replace(by_turns, uses_mps=True).uids == {}


@only_root
@pytest.mark.parametrize(
    ("named", "default", "uses_mps", "reason"),
    [
        ("a=daemon", "nobody", True, "MPS serves one user per GPU; add"),
        ("a=daemon", OWN_USER, False, "name another one by --worker-user"),
        (
            "a=n-o-one",
            "nobody",
            False,
            "--worker-user-for a: there is no user 'n-o-one'",
        ),
        ("a=nobody", "nobody", False, "each project is named once"),
        (f"a={OWN_USER}", "nobody", False, "each project is named once"),
        ("a=bin b=bin", "nobody", False, "b=bin: each project"),
        ("a=bin a=daemon", "nobody", False, "each project is named"),
    ],
)
def test_users_of_projects_that_would_not_be_apart_are_refused(
    named: str, default: str, uses_mps: bool, reason: str
) -> None:
    users = [(each[0], each[2:]) for each in named.split()]
    with pytest.raises(DeviceError, match=reason):
        find_project_users(users, find_worker_user(default, FOLDERS), uses_mps=uses_mps)


def test_a_user_is_named_for_a_project_whose_name_can_be_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser()
    add_worker_users(parser)
    taken = parser.parse_args(["--worker-user-for", "team-a=worker-a"]).worker_user_for
    assert taken == [("team-a", "worker-a")]
    for project in ("Team-A=", "team_a=", " team-a=", f"{'a' * 64}=", "=", "team-a"):
        user = "worker-a" if project.endswith("=") else ""
        with pytest.raises(SystemExit):
            parser.parse_args(["--worker-user-for", f"{project}{user}"])
        assert "must look like team-a=worker-a" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parser.parse_args(["--worker-user-for", "team-a="])


def test_the_agent_writes_no_file_through_a_link_of_the_workers(tmp_path: Path) -> None:
    folder, victim = tmp_path / "work", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious")
    for name in ("settings", "settings.new"):
        (folder / name).symlink_to(victim)
    write_file(folder / "settings", b"ours")
    assert victim.read_text() == "precious"
    assert (folder / "settings").read_text() == "ours"
    assert not (folder / "settings").is_symlink()


def test_the_agent_reads_no_link_and_waits_at_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="link"):
        read_file(tmp_path / "link")
    with pytest.raises(OSError, match="not a regular file"):
        read_file(tmp_path / "pipe")


@only_root
def test_a_folder_and_its_files_belong_to_the_worker(tmp_path: Path) -> None:
    folder = tmp_path / "t1"
    give_folder(folder, None, keeps=True)
    write_file(folder / "kept", b"5")
    give_folder(folder, NOBODY, keeps=True)
    assert list(folder.iterdir()) == []
    write_file(folder / "kept", b"7")
    give_folder(folder, NOBODY, keeps=True)
    assert (folder / "kept").read_bytes() == b"7"
    for path, mode in ((folder, 0o700), (folder / "kept", 0o600)):
        found = path.stat()
        assert found.st_uid == 65534
        assert found.st_gid == 65534
        assert found.st_mode & 0o777 == mode


def test_a_folder_that_the_worker_cannot_reach_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "home"
    closed.mkdir(mode=0o700)
    make_folder(closed / "workers", NOBODY)
    assert (closed / "workers").stat().st_mode & 0o777 == 0o711
    with pytest.raises(DeviceError, match=r"closed to it; open it \(`chmod o\+x`\)"):
        require_reach(closed / "workers", NOBODY)


def test_nvidias_programs_get_a_list_of_variables_and_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "control"
    program.write_text(f"#!/bin/sh\nenv > {tmp_path}/given\necho 100.0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PLIMSOLL_TOKEN", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    mps = Mps("GPU-1", tmp_path / "0", control=str(program))
    assert asyncio.run(mps.is_alive())
    given = (tmp_path / "given").read_text()
    assert "secret" not in given
    assert "NVIDIA_VISIBLE_DEVICES=all" in given
    assert "secret" not in tool_environment(os.environ).values()
