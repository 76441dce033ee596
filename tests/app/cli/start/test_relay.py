"""`plimsoll relay`: it goes on whatever is away for a while, and counts what came meanwhile."""

from dataclasses import dataclass, field

import httpx2
import pytest

from tests.app.cli.fake_api import FakeApi, Json
from tests.app.cli.transients import TRANSIENTS, fail
from tests.app.runner import Result, cli

METRICS = "http://gpu-7:8000/metrics"
RELAY = f"relay {METRICS} --kind vllm"
CHAT: Json = {"kind": "Service", "spec": {"slo": {"latency_ms": 100.0}}}
SENT = "POST services/chat/telemetry"


def page(spec: str) -> str:
    """What engines have counted, such as `1000+1200` or `1000+gone`, and after a `@` when their process started."""
    counts, _, started_s = spec.partition("@")
    lines = [f"process_start_time_seconds {started_s}"] if started_s else []
    for engine, count in enumerate(counts.split("+")):
        if count == "gone":
            continue
        labels = f'engine="{engine}",model_name="chat"'
        lines += [
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {count}',
            *(
                f'vllm:e2e_request_latency_seconds_bucket{{{labels},le="{end}"}} {count}'
                for end in ("0.1", "+Inf")
            ),
        ]
    return "\n".join([*lines, ""])


def answer(what: str, request: httpx2.Request) -> httpx2.Response:
    """One answer of a server: its page, or what goes wrong."""
    match what:
        case "empty":
            return httpx2.Response(200, text="python_info 1\n")
        case "bucket":
            text = page("7").replace('le="+Inf"', 'le="x"')
            return httpx2.Response(200, text=text)
        case "html":
            return httpx2.Response(200, text="<html>")
    return (
        fail(what, request)
        if what in TRANSIENTS
        else httpx2.Response(200, text=page(what))
    )


@dataclass
class Both:
    """A server that gives one page after the other, the last one again and again, and a control plane."""

    pages: list[str]
    pushes: list[str] = field(default_factory=list)
    """What goes wrong with the first pushes; `lost`: it is stored, and its answer is lost."""
    slo_ms: list[float] = field(default_factory=list)
    api: FakeApi = field(
        default_factory=lambda: FakeApi(
            objects={"services/chat": CHAT}, answers={SENT: {"stored": True}}
        )
    )

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "gpu-7":
            what = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
            return answer(what, request)
        if request.method == "GET" and self.slo_ms:
            slo = {"latency_ms": self.slo_ms.pop(0)}
            return httpx2.Response(200, json={**CHAT, "spec": {"slo": slo}})
        if request.method == "POST" and self.pushes:
            return self._fail(self.pushes.pop(0), request)
        return self.api(request)

    def _fail(self, what: str, request: httpx2.Request) -> httpx2.Response:
        if what == "lost":
            self.api(request)
            raise httpx2.ReadTimeout("timed out", request=request)
        return fail(what, request)

    def served(self) -> list[object]:
        """Requests of each window that was stored."""
        return [sent["served"] for sent in self.api.sent("POST")]


def relayed(both: Both, *, windows: int) -> Result:
    return cli(f"{RELAY} --service chat --windows {windows}", api=both)


def test_each_period_s_counts_are_pushed() -> None:
    both = Both(["10", "20", "30"])
    result = relayed(both, windows=2)
    assert result.code == 0, result.err
    assert [
        (sent["source"], sent["served"], sent["in_slo"])
        for sent in both.api.sent("POST")
    ] == [("relay", 10, 10)] * 2
    assert "10 came, 10 were served, 10 of them in time" in result.out


@pytest.mark.parametrize("away", [*TRANSIENTS, "empty", "html", "bucket"])
def test_a_server_that_is_away_loses_nothing(away: str) -> None:
    both = Both(["10", away, away, away, "60"])
    result = relayed(both, windows=1)
    assert result.code == 0, result.err
    assert both.served() == [50]
    assert result.err.count("asked again until it answers") == 1
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("away", ["503", "reset", "timeout", "refused", "empty"])
def test_a_server_that_restarts_counts_from_zero(away: str) -> None:
    both = Both(["1000@100", away, "5@4000000000", "9@4000000000"])
    result = relayed(both, windows=2)
    assert result.code == 0, result.err
    assert both.served() == [5, 4]


@pytest.mark.parametrize("away", TRANSIENTS)
def test_a_control_plane_that_is_away_gets_everything_later(away: str) -> None:
    both = Both(["10", "20", "30", "70"], pushes=[away, away])
    result = relayed(both, windows=2)
    assert result.code == 0, result.err
    assert both.served() == [10, 50]
    assert "not pushed yet" in result.out


def test_a_push_whose_answer_was_lost_is_repeated_as_it_was() -> None:
    """Else the same requests would be counted twice, or the window be refused as another one at its place."""
    both = Both(["10", "20", "30", "40"], pushes=["lost"])
    assert relayed(both, windows=2).code == 0
    first, again, *rest = both.api.sent("POST")
    assert first == again
    assert [sent["served"] for sent in rest] == [10]


def test_waits_grow_while_nothing_answers_and_end_with_it() -> None:
    both = Both(["10", *["503"] * 8, "60", "70"])
    waits: list[float] = []
    command = f"{RELAY} --service chat --windows 2 --period-s 2"
    assert cli(command, api=both, sleep=waits.append).code == 0
    assert waits == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0, 30.0, 2.0]


def test_a_language_model_is_relayed_by_its_first_tokens() -> None:
    both = Both(["10", "20"])
    slo = {"ttft_ms": 600.0, "itl_ms": 40.0, "percentile": 0.9}
    both.api.objects["services/chat"] = {**CHAT, "spec": {"kind": "llm", "slo": slo}}
    result = relayed(both, windows=1)
    assert result.code == 0, result.err
    assert both.served() == [10]


def test_the_slo_is_read_again() -> None:
    """At first all in the first bucket are in time, then half of them."""
    both = Both(["10", "20", "30"], slo_ms=[100.0, 100.0, 50.0])
    assert relayed(both, windows=2).code == 0
    assert [sent["in_slo"] for sent in both.api.sent("POST")] == [10, 5]


def test_one_engine_that_restarts_adds_what_it_did_since() -> None:
    both = Both(["1000+1000", "10+1200"])
    assert "210 came" in relayed(both, windows=1).out


@pytest.mark.parametrize(
    ("pages", "served"),
    [
        (["1000+1000", "1010+gone", "1020+1030"], [10, 40]),
        (["1000+1000@100", "gone+1010@100", "gone+gone@100", "5+1030@100"], [10, 25]),
        # It began again while it was away, or all of them did.
        (["1000+1000", "1010+gone", "1020+7"], [10, 17]),
        (["1000+9@100", "1010+gone@100", "3+gone@4000000000", "4+20@4000000000"], [10, 3, 21]),
        (["1000+9", "1010+gone", "3+gone", "4+gone", "5+20"], [10, 4, 21]),
    ],
)  # fmt: skip
def test_an_engine_that_is_away_from_a_page_goes_on_where_it_was_seen(
    pages: list[str], served: list[int]
) -> None:
    both = Both(pages)
    result = relayed(both, windows=len(served))
    assert result.code == 0, result.err
    assert both.served() == served


@pytest.mark.parametrize(
    "pages",
    [
        ["1000000", "500000", "1000010", "500010"],
        ["1000000", "500000", "400000"],
        ["500000", "1000000", "500010", "1000010", "500020"],
        ["1000000@100", "500000@100"],
        ["1000000@100", "500000@200", "1000010@100"],
        ["500000@200", "1000000@100"],
        ["500000@100", "1000000@200", "1000010@200", "500020@100"],
        # Three.
        ["500@100", "600@200", "700@300"],
    ],
)
def test_two_servers_at_one_address_are_refused(pages: list[str]) -> None:
    both = Both(pages)
    result = relayed(both, windows=3)
    assert result.code == 1
    assert "two servers answer at http://gpu-7:8000/metrics" in result.err
    assert "by an address of its own" in result.err


@pytest.mark.parametrize(
    "pages",
    [
        ["1000000", "500000", "1000010", "500010"],
        ["1000000@100", "500000@200", "1000010@100"],
        ["500000@100", "1000000@200", "500010@100"],
    ],
)
def test_nothing_that_may_be_another_servers_is_counted(pages: list[str]) -> None:
    both = Both(pages)
    assert "two servers answer" in relayed(both, windows=3).err
    assert both.served() == []


def test_a_rolling_update_is_followed_from_where_the_new_server_is_seen() -> None:
    """It started and warmed up while the old one still answered."""
    both = Both(["1000@100", "7@200", "reset", "9@200", "12@200"])
    result = relayed(both, windows=2)
    assert result.code == 0, result.err
    assert both.served() == [2, 3]


def test_a_restart_without_a_start_time_shows_at_the_next_page() -> None:
    both = Both(["1000", "503", "5", "9", "12"])
    result = relayed(both, windows=2)
    assert result.code == 0, result.err
    assert both.served() == [9, 3]


def test_a_restart_that_has_passed_the_old_counts_is_counted_from_there() -> None:
    both = Both(["10", "3", "20", "25", "32"])
    result = relayed(both, windows=2)
    assert result.code == 0, result.err
    assert both.served() == [5, 7]


@pytest.mark.parametrize("status", [401, 403, 404, 409])
def test_what_will_not_pass_ends_it(status: int) -> None:
    both = Both(["10", "20"], pushes=[str(status)])
    assert relayed(both, windows=1).code == 1


@pytest.mark.parametrize("first", ["503", "reset", "empty", "html"])
def test_the_first_reading_ends_it(first: str) -> None:
    assert relayed(Both([first, "10", "20"]), windows=1).code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--kind", "vllm", "--service", "chat", "--served-as", "llama"),
            "says nothing of 'llama'",
        ),
        (("--kind", "mlserver", "--service", "chat"), "says nothing of"),
        (("--kind", "dcgm", "--service", "chat"), "not of a service"),
        (("--kind", "dcgm"), "nothing there is known"),
    ],
)
def test_what_does_not_fit_is_said(arguments: tuple[str, ...], words: str) -> None:
    result = cli("relay", METRICS, *arguments, api=Both(["10"]))
    assert result.code == 1
    assert words in result.err


def test_a_server_without_latencies_is_refused() -> None:
    text = 'nv_inference_request_success{model="chat"} 5\n'

    def serve(request: httpx2.Request) -> httpx2.Response:
        both = Both(["10"])
        return (
            httpx2.Response(200, text=text)
            if request.url.host == "gpu-7"
            else both(request)
        )

    result = cli(f"relay {METRICS} --kind triton --service chat", api=serve)
    assert result.code == 1
    assert "does not tell its latencies" in result.err


def test_without_a_service_it_shows_what_the_server_says() -> None:
    result = cli(f"{RELAY} --served-as chat", api=Both(["10"]))
    assert (result.code, "10 requests" in result.out) == (0, True)


def test_of_several_errors_of_a_gpu_all_are_shown() -> None:
    lines = [f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",err_code="{n}"}} {n}' for n in (79, 45)]
    text = "\n".join([*lines, ""])
    result = cli(
        f"relay {METRICS} --kind dcgm",
        api=lambda _: httpx2.Response(200, text=text),
    )
    assert "45, 79" in result.out
