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
WRONG = "[Service]\nProtectNothing=yes\nKillMode=gently\n"
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


@pytest.mark.parametrize("variants", [(), VARIANTS, ("wrong",)], ids="+".join)
def test_systemd_takes_every_line(tmp_path: Path, variants: tuple[str, ...]) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze: the keys are compared below")
    path, more = tmp_path / UNIT.name, tmp_path / f"{UNIT.name}.d"
    more.mkdir()
    # The programs need not be there.
    begins = re.compile(r"^(Exec\w+=[-+]*)/\S+", re.MULTILINE)
    path.write_text(begins.sub(r"\1/bin/true", UNIT.read_text()))
    for variant in variants:
        file = UNITS / f"plimsoll-agent.{variant}.conf"
        text = file.read_text() if variant in VARIANTS else WRONG
        own = text.replace("/opt/plimsoll/bin/plimsoll-agent", "/bin/true")
        (more / f"{variant}.conf").write_text(own)
    command = [program, "verify", "--man=no", str(path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    # Other units of this machine may have faults of their own.
    lines = [line for line in ended.stderr.splitlines() if "plimsoll-agent" in line]
    said = "\n".join(lines)
    if "wrong" in variants:
        assert "ProtectNothing" in said and "gently" in said
    else:
        assert said == ""


def test_what_the_agents_replicas_need_is_set() -> None:
    unit = settings(UNIT)
    expected = {
        # Only the agent is ended; replicas go on.
        "KillMode": ["process"],
        "OOMPolicy": ["continue"],
        # The sockets of MPS have a short path and outlive the service.
        "RuntimeDirectory": ["plimsoll-agent"],
        "RuntimeDirectoryPreserve": ["yes"],
        # The driver's files are reached and no others.
        "DevicePolicy": ["closed"],
        "DeviceAllow": ["char-nvidia* rwm"],
        # Of all replicas together.
        "MemoryMax": ["95%"],
        # Root has what the bounding set has, and no more.
        "User": ["root"],
        "CapabilityBoundingSet": [" ".join(RIGHTS)],
        "StateDirectoryMode": ["0700"],
        "RuntimeDirectoryMode": ["0711"],
    }
    assert unit | expected == unit
    assert "AmbientCapabilities" not in unit
    assert int(unit["LimitNOFILE"][0]) >= 16384
    for key in ("Wants", "After"):
        assert "modprobe@nvidia_uvm.service" in unit[key][0].split()
    # Everything that was turned is put back.
    (stop,), (start,) = unit["ExecStopPost"], unit["ExecStart"]
    assert "--mps-dir %t/plimsoll-agent " in start
    state = re.search(r"--state-dir (\S+)", start)
    assert state is not None
    assert stop == f"/opt/plimsoll/bin/plimsoll-agent restore --state-dir {state[1]}"
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
    assert line.split()[1] == DEFAULT_USER
    # /var/lib is %S; the folder is where the agent makes those of its replicas.
    folders = workers_folders(Path("/var/lib/plimsoll-agent"))
    assert line.split()[-1] == f"{folders}/home"
    assert f"-%S/{folders.name}" in unit["ReadWritePaths"][0].split()
    assert f"+/usr/bin/install -d -m 0711 %S/{folders.name}" in unit["ExecStartPre"]
