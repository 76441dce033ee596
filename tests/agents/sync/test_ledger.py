"""The last command survives restarts and torn writes, and never goes back."""

import hashlib
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.base.device import DeviceError
from agents.sync.ledger import CURRENT, KEY, PREVIOUS, Ledger
from tests.agents.factories import a_command, a_replica, on_gpu


def test_an_accepted_command_is_there_after_a_restart(tmp_path: Path) -> None:
    command = on_gpu(a_replica(), generation=7)
    Ledger(tmp_path / "deep" / "state").accept(command)
    assert Ledger(tmp_path / "deep" / "state").command == command


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_older_generation_is_refused(tmp_path: Path, is_kept: bool) -> None:
    ledger = Ledger(tmp_path if is_kept else None)
    ledger.accept(a_command(generation=5))
    assert "older than 5" in ledger.objection(a_command(generation=4))
    with pytest.raises(ValueError, match="older than 5"):
        ledger.accept(a_command(generation=4))
    # The same again changes nothing, and a forged twin is refused.
    ledger.accept(a_command(generation=5))
    assert "different content" in ledger.objection(on_gpu(generation=5))
    assert ledger.generation == 5


@pytest.mark.parametrize("damage", [b"", b"\x00" * 40, b"not a checksum\n{}"])
def test_a_damaged_file_falls_back_to_the_command_before(
    tmp_path: Path, damage: bytes
) -> None:
    ledger = Ledger(tmp_path)
    ledger.accept(a_command(generation=1))
    ledger.accept(a_command(generation=2))
    (tmp_path / CURRENT).write_bytes(damage)
    restarted = Ledger(tmp_path)
    assert restarted.generation == 1
    assert "damaged" in restarted.problems[0]


@given(kept=st.floats(0.0, 1.0, exclude_max=True))
def test_no_torn_write_is_ever_read_as_a_command(
    tmp_path_factory: pytest.TempPathFactory, kept: float
) -> None:
    folder = tmp_path_factory.mktemp("state")
    Ledger(folder).accept(on_gpu(a_replica(), generation=3))
    content = (folder / CURRENT).read_bytes()
    (folder / CURRENT).write_bytes(content[: int(kept * len(content))])
    assert Ledger(folder).command is None


def test_a_command_written_without_the_key_is_not_obeyed(tmp_path: Path) -> None:
    """Its checksum is right, as anybody could make it; so was every file before the ledger had a key."""
    Ledger(tmp_path)
    body = msgspec.json.encode(on_gpu(a_replica(), generation=9))
    forged = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    (tmp_path / CURRENT).write_bytes(forged)
    restarted = Ledger(tmp_path)
    assert restarted.command is None
    assert "not written with the key" in restarted.problems[0]


def test_directory_and_key_are_the_agents_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    Ledger(state).accept(a_command(generation=1))
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / KEY).stat().st_mode) == 0o600
    (state / KEY).write_bytes(b"short")
    with pytest.raises(DeviceError, match="damaged; remove it"):
        Ledger(state)


def test_a_crash_between_two_steps_of_a_write_loses_nothing(tmp_path: Path) -> None:
    Ledger(tmp_path).accept(a_command(generation=3))
    (tmp_path / f"{CURRENT}.new").write_bytes(b"half")
    assert Ledger(tmp_path).generation == 3
    (tmp_path / CURRENT).replace(tmp_path / PREVIOUS)
    assert Ledger(tmp_path).generation == 3


def test_a_full_disk_leaves_the_old_command_in_force(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state")
    ledger.accept(a_command(generation=1))
    (tmp_path / "state" / f"{CURRENT}.new").mkdir()
    with pytest.raises(OSError, match=r"command\.json\.new"):
        ledger.accept(a_command(generation=2))
    assert ledger.generation == 1
