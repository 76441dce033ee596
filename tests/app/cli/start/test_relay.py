"""`plimsoll relay`: a server's own metrics become windows of telemetry."""

import math
from dataclasses import dataclass, field

import httpx2
import pytest

from agents.replicas.server_metrics import Histogram, ServerCounts
from app.cli.start.relay import ServerReading, make_window
from tests.app.cli.fake_api import FakeApi, Json
from tests.app.runner import cli

ENDS = (100.0, 200.0, math.inf)
START_S = 1_772_366_400.0  # 2026-03-01T12:00:00Z


def reading(
    after_s: float,
    counts: tuple[int, ...],
    *,
    failed: float | None = None,
    waiting: float | None = None,
    running: float | None = None,
) -> ServerReading:
    found = ServerCounts(
        served=float(sum(counts)),
        failed=failed,
        waiting=waiting,
        running=running,
        latency=Histogram(ends_ms=ENDS, counts=counts),
    )
    return ServerReading(at_s=START_S + after_s, counts=found)


def test_a_window_is_what_happened_between_two_readings() -> None:
    before, after = (
        reading(0.0, (10, 5, 1), waiting=2.0, running=4.0),
        reading(10.0, (20, 9, 2), waiting=5.0, running=4.0),
    )
    assert make_window("vllm-1", before, after, 150.0) == {
        "source": "vllm-1",
        "window_start": "2026-03-01T12:00:00+00:00",
        "window_s": 10.0,
        "arrivals": 15 + 3,
        "served": 15,
        "in_slo": 12,  # 10 of the first bucket, half of the second one's 4
        "rejected": 0,
        "latency_ms": [
            {"count": 10, "up_to_ms": 100.0},
            {"count": 4, "up_to_ms": 200.0},
            {"count": 1},
        ],
    }


def test_failures_came_and_are_misses() -> None:
    window = make_window(
        "s",
        reading(0.0, (1, 0, 0), failed=1.0),
        reading(10.0, (2, 0, 0), failed=4.0),
        100.0,
    )
    assert window is not None
    assert (window["arrivals"], window["served"], window["rejected"]) == (4, 1, 3)


def test_after_a_restart_counts_begin_anew_and_are_never_negative() -> None:
    window = make_window(
        "s", reading(0.0, (50, 0, 0), running=9.0), reading(10.0, (2, 0, 0)), 100.0
    )
    assert window is not None
    assert (window["arrivals"], window["served"], window["in_slo"]) == (0, 2, 2)


NAME = "vllm:e2e_request_latency_seconds_bucket"
METRICS = "http://gpu-7:8000/metrics"
RELAY = f"relay {METRICS} --kind vllm"
CHAT: Json = {"kind": "Service", "spec": {"slo": {"latency_ms": 100.0}}}


@dataclass
class Both:
    """A server that has served ten more each time it is asked, and a control plane that may be away at first."""

    away: int = 0
    asked: int = 0
    api: FakeApi = field(
        default_factory=lambda: FakeApi(
            objects={"services/chat": CHAT},
            answers={"POST services/chat/telemetry": {"stored": True}},
        )
    )

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "gpu-7":
            self.asked += 1
            lines = [
                f'{NAME}{{le="{end}",model_name="chat"}} {10 * self.asked}'
                for end in ("0.1", "+Inf")
            ]
            served = (
                f'vllm:request_success_total{{model_name="chat"}} {10 * self.asked}'
            )
            return httpx2.Response(200, text="\n".join([*lines, served]) + "\n")
        if request.method == "POST" and self.away:
            self.away -= 1
            raise httpx2.ConnectError("refused", request=request)
        return self.api(request)


def test_each_period_s_counts_are_pushed() -> None:
    both = Both()
    result = cli(f"{RELAY} --service chat --windows 2", api=both)
    assert result.code == 0, result.err
    assert [
        (sent["source"], sent["served"], sent["in_slo"])
        for sent in both.api.sent("POST")
    ] == [("relay", 10, 10)] * 2
    assert "10 came, 10 were served, 10 of them in time" in result.out


def test_what_could_not_be_pushed_goes_with_the_next_window() -> None:
    both = Both(away=1)
    result = cli(f"{RELAY} --service chat --windows 1", api=both)
    assert result.code == 0, result.err
    assert [sent["served"] for sent in both.api.sent("POST")] == [20]
    assert "not pushed" in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--kind", "vllm", "--service", "chat", "--served-as", "llama"),
            "says nothing of 'llama'",
        ),
        (("--kind", "dcgm", "--service", "chat"), "not of a service"),
        (("--kind", "dcgm"), "nothing there is known"),
    ],
)
def test_what_does_not_fit_is_said(arguments: tuple[str, ...], words: str) -> None:
    result = cli("relay", METRICS, *arguments, api=Both())
    assert result.code == 1
    assert words in result.err


def test_without_a_service_it_shows_what_the_server_says() -> None:
    result = cli(f"{RELAY} --served-as chat", api=Both())
    assert (result.code, "10 requests" in result.out) == (0, True)


def test_a_server_that_tells_no_latencies_makes_no_window() -> None:
    told = ServerReading(at_s=START_S, counts=ServerCounts(served=5.0))
    assert make_window("s", told, told, 100.0) is None
