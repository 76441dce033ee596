"""The unit of the agent: systemd reads every line of it, its variants fit, and it keeps what replicas need."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agents.processes.user import DEFAULT_USER, RIGHTS, workers_folders
from tests.waiting import PATIENCE_S

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
INSTALL = Path(__file__).parents[2] / "docs" / "install-agent.md"
UNIT = UNITS / "plimsoll-agent.service"
VARIANTS = ("clocks", "watch")
NOT_SET = {
    "DynamicUser",
    "PrivateDevices",
    "PrivateTmp",
    "PrivateUsers",
    "PrivateNetwork",
    "PrivateIPC",
    "ProtectProc",
    "ProcSubset",
    "MemoryDenyWriteExecute",
    "SystemCallFilter",
    "RemoveIPC",
    "UMask",
}
"""Options of hardening that would break replicas, MPS or the agent's successor; the page says how."""


def settings(path: Path) -> dict[str, list[str]]:
    """Values by key, in order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def verify(directory: Path, *variants: str) -> str:
    """What systemd has against the unit with these variants; the programs need not be there."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze: the keys are compared below")
    path = directory / UNIT.name
    present = re.sub(
        r"^(Exec\w+=[-+]*)/\S+", r"\1/bin/true", UNIT.read_text(), flags=re.MULTILINE
    )
    path.write_text(present)
    (directory / f"{UNIT.name}.d").mkdir()
    for variant in variants:
        text = (
            (UNITS / f"plimsoll-agent.{variant}.conf")
            .read_text()
            .replace("/opt/plimsoll/bin/plimsoll-agent", "/bin/true")
        )
        (directory / f"{UNIT.name}.d" / f"{variant}.conf").write_text(text)
    command = [program, "verify", "--man=no", str(path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    # Other units of this machine may have faults of their own.
    return "\n".join(
        line for line in ended.stderr.splitlines() if "plimsoll-agent" in line
    )


@pytest.mark.parametrize(
    "variants",
    [(), ("clocks",), ("watch",), VARIANTS],
    ids=lambda given: "+".join(given) or "plain",
)
def test_systemd_takes_every_line(tmp_path: Path, variants: tuple[str, ...]) -> None:
    assert verify(tmp_path, *variants) == ""


def test_a_line_that_systemd_does_not_take_would_be_seen(tmp_path: Path) -> None:
    verify(tmp_path)
    (tmp_path / f"{UNIT.name}.d" / "wrong.conf").write_text(
        "[Service]\nProtectNothing=yes\nKillMode=gently\n"
    )
    program = shutil.which("systemd-analyze") or ""
    ended = subprocess.run(
        [program, "verify", "--man=no", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ProtectNothing" in ended.stderr
    assert "gently" in ended.stderr


def test_only_the_agent_is_ended_and_everything_turned_is_put_back() -> None:
    unit = settings(UNIT)
    assert unit["KillMode"] == ["process"]
    assert unit["OOMPolicy"] == ["continue"]
    (stop,), (start,) = unit["ExecStopPost"], unit["ExecStart"]
    state = re.search(r"--state-dir (\S+)", start)
    assert state is not None
    assert stop == f"/opt/plimsoll/bin/plimsoll-agent restore --state-dir {state[1]}"


def test_the_sockets_of_mps_have_a_short_path_and_outlive_the_service() -> None:
    unit = settings(UNIT)
    assert "--mps-dir %t/plimsoll-agent " in unit["ExecStart"][0]
    assert unit["RuntimeDirectory"] == ["plimsoll-agent"]
    assert unit["RuntimeDirectoryPreserve"] == ["yes"]
    # %t is /run: /run/plimsoll-agent/63/pipe has 28 characters, far below 87.
    assert len("/run/plimsoll-agent/63/pipe") < 87


def test_limits_are_those_of_all_replicas_together() -> None:
    unit = settings(UNIT)
    assert int(unit["LimitNOFILE"][0]) >= 16384
    assert unit["MemoryMax"] == ["95%"]


def test_the_drivers_files_are_reached_and_no_others() -> None:
    unit = settings(UNIT)
    assert unit["DevicePolicy"] == ["closed"]
    assert unit["DeviceAllow"] == ["char-nvidia* rwm"]
    assert "modprobe@nvidia_uvm.service" in unit["Wants"][0].split()
    assert "modprobe@nvidia_uvm.service" in unit["After"][0].split()


def test_the_right_to_turn_clocks_is_a_variant() -> None:
    # Root has what the bounding set has, and no more.
    assert settings(UNIT)["CapabilityBoundingSet"] == [" ".join(RIGHTS)]
    assert "AmbientCapabilities" not in settings(UNIT)
    clocks = settings(UNITS / "plimsoll-agent.clocks.conf")
    assert clocks["CapabilityBoundingSet"] == ["CAP_SYS_ADMIN"]
    assert clocks["SystemCallFilter"][0].startswith("~")


def test_what_would_break_replicas_is_not_set_and_the_page_says_why() -> None:
    assert NOT_SET.isdisjoint(settings(UNIT))
    page = INSTALL.read_text()
    assert {key for key in NOT_SET if f"`{key}=" not in page} == set()


def test_replicas_have_a_user_of_their_own_that_is_made_and_reaches_its_folders() -> (
    None
):
    unit = settings(UNIT)
    lines = (UNITS / "plimsoll-agent.sysusers").read_text().splitlines()
    (line,) = [line for line in lines if not line.startswith("#")]
    assert unit["User"] == ["root"]
    assert line.split()[1] == DEFAULT_USER
    # /var/lib is %S; the folder is where the agent makes those of its replicas.
    folders = workers_folders(Path("/var/lib/plimsoll-agent"))
    assert line.split()[-1] == f"{folders}/home"
    assert unit["StateDirectoryMode"] == ["0700"]
    assert unit["RuntimeDirectoryMode"] == ["0711"]
    assert f"-%S/{folders.name}" in unit["ReadWritePaths"][0].split()
    assert f"+/usr/bin/install -d -m 0711 %S/{folders.name}" in unit["ExecStartPre"]
