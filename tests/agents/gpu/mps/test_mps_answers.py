"""What the MPS daemon's answers mean; texts as releases 535, 550 and 580 print them."""

import pytest

from agents.base.device import DeviceError, NotPermitted, NotSupported
from agents.gpu.mps.answers import (
    ServerState,
    explanation,
    lines_of,
    percent,
    pids,
    state,
    worst,
)


@pytest.mark.parametrize(
    ("said", "complaint", "error", "words"),
    [
        (
            "",
            "Cannot find MPS control daemon process\n",
            DeviceError,
            "no MPS daemon answered 'set_x 1'",
        ),
        (
            "",
            "Cannot send command to MPS control daemon process\n",
            DeviceError,
            "does not accept 'set_x 1'",
        ),
        (
            "Insufficient privileges for UID 7\n",
            "",
            NotPermitted,
            "refuses 'set_x 1': Insufficient privileges",
        ),
        (
            "Not enough privilege to execute quit command\n",
            "",
            NotPermitted,
            "Not enough privilege",
        ),
        (
            'Unknown command "set_x"\n',
            "",
            NotSupported,
            "this release of MPS has no 'set_x'",
        ),
    ],
)
def test_a_refusal_is_an_error_though_the_program_exits_0(
    said: str, complaint: str, error: type[DeviceError], words: str
) -> None:
    with pytest.raises(error, match=words):
        lines_of("set_x 1", said, complaint)


def test_process_ids_are_listed_ascending_and_a_server_that_went_has_none() -> None:
    assert pids(("30", "4 ", "100")) == (4, 30, 100)
    assert pids(()) == pids(("Server 12 not found",)) == ()
    with pytest.raises(DeviceError, match="said '12 / what'"):
        pids(("12", "what"))


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        (("37.5",), 37.5),
        (("words", "100.0"), 100.0),
        (("Server 1 not found",), None),
        ((), None),
    ],
)
def test_a_percentage_is_the_last_line(
    lines: tuple[str, ...], value: float | None
) -> None:
    assert percent(lines) == value


@pytest.mark.parametrize(
    ("lines", "meant"),
    [
        (("INITIALIZING",), "initializing"),
        (("ACTIVE",), "active"),
        (("FAULT",), "fault"),
        (("Server 7 not found",), "none"),
        (("SOMETHING NEW",), "unknown"),
        ((), "unknown"),
    ],
)
def test_a_state_that_is_not_known_is_said_to_be_unknown(
    lines: tuple[str, ...], meant: ServerState
) -> None:
    assert state(lines) == meant


def test_of_several_servers_the_worst_state_counts() -> None:
    assert worst(("active", "fault", "initializing")) == "fault"
    assert worst(("active", "initializing")) == "initializing"
    assert worst(("active", "unknown")) == "unknown"
    assert worst(("none", "active")) == "active"
    assert worst(()) == "none"


def test_the_log_is_explained_by_its_most_telling_line() -> None:
    loop = "NEW CLIENT 0 from user 1000: Server already exists\nServer 41 exited with status 1\n"
    assert "PID namespace" in explanation(loop)
    assert "libcuda.so.1" in explanation("Server 41 exited with status 1\n")
    assert "16384" in explanation(
        "Failed to create SHM segment\nServer 41 exited with status 1\n"
    )
    assert explanation("Starting new server 41 for user 0\n") == ""
