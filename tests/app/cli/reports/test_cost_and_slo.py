"""`cost`, `slo` and `events`: sums over reporting views, and the audit."""

import json
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
import typer

from app.cli.common.durations import (
    parse_duration,
    parse_moment,
    seconds_within,
)
from tests.app.cli.fake_api import FakeApi
from tests.app.runner import cli

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
COST: dict[str, object] = {
    "columns": [
        "hour",
        "project",
        "service",
        "gpu_hours",
        "cost_usd",
        "whole_gpu_cost_usd",
        "memory_cost_usd",
    ],
    "rows": [
        ["2026-03-01T11:00:00+00:00", "(idle)", "(idle)", 0.5, 1.5, 0.0, 1.0],
        ["2026-03-01T11:00:00+00:00", "default", "chat", 0.5, 1.5, 3.0, 2.0],
        ["2026-03-01T12:00:00+00:00", "default", "chat", 1.0, 3.0, 3.0, 3.0],
    ],
    "next_cursor": None,
}
SLO: dict[str, object] = {
    "columns": [
        "hour",
        "service",
        "requests",
        "served",
        "in_slo",
        "rejected",
        "slo_latency_ms",
        "slo_percent",
    ],
    "rows": [
        ["2026-03-01T11:00:00+00:00", "chat", 1000, 990, 980, 10, 50.0, 98.0],
        ["2026-03-01T12:00:00+00:00", "chat", 1000, 1000, 990, 0, 40.0, 98.0],
        ["2026-03-01T12:00:00+00:00", "idle", 0, 0, 0, 0, 40.0, 98.0],
    ],
    "next_cursor": None,
}
BUDGET: dict[str, object] = {
    "columns": ["service", "period", "burn_rate", "budget_used_percent", "is_alerting"],
    "rows": [
        ["chat", "1 h", 21.5, 60.0, True],
        ["chat", "6 h", 0.75, 75.0, False],
        ["chat", "30 d", 0.75, 75.5, None],
        ["gone", "30 d", 3.0, 300.0, None],
        ["idle", "1 h", None, None, False],
        ["idle", "30 d", None, None, None],
    ],
    "next_cursor": None,
}
SLO_ANSWERS = {"GET reports/slo_attainment_hour": SLO, "GET reports/slo_budget": BUDGET}


def event(number: int, kind: str = "PlanPushed") -> dict[str, object]:
    return {
        "id": number,
        "at": "2026-03-01T12:00:00Z",
        "actor": "controller",
        "kind": kind,
        "subject": f"plan/{number}",
        "reason": "chat: +1 on T4",
        "request_id": None,
    }


def test_cost_is_summed_by_service_with_idle_last_and_a_total() -> None:
    result = cli(
        "cost", api=FakeApi(answers={"GET reports/cost_by_service_hour": COST})
    )
    assert result.out.splitlines() == [
        "SERVICE  GPU HOURS     COST   SHARE  WHOLE-GPU COST",
        "chat          1.50  $4.5000  75.0 %         $6.0000",
        "(idle)        0.50  $1.5000  25.0 %         $0.0000",
        "total         2.00  $6.0000                 $6.0000",
    ]


def test_cost_may_be_summed_by_project_and_gpu_type_over_all_pages() -> None:
    first = {**COST, "rows": COST["rows"][:1], "next_cursor": "next"}  # type: ignore[index]
    last = {**COST, "rows": COST["rows"][1:]}  # type: ignore[index]

    def api(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == "/api/v1/reports/cost_by_project_hour"
        return httpx2.Response(
            200, json=last if "cursor" in request.url.params else first
        )

    items = json.loads(cli("cost --by project -o json", api=api).out)["items"]
    assert [(entry["project"], entry["cost_usd"]) for entry in items] == [
        ("default", 4.5),
        ("(idle)", 1.5),
    ]
    api_of_types = FakeApi(
        answers={"GET reports/cost_by_gpu_type_hour": {"columns": [], "rows": []}}
    )
    result = cli("cost --by gpu-type --since 2h", api=api_of_types)
    assert (result.code, result.out, result.err) == (0, "", "No cost since 2h.\n")


def test_attainment_counts_refused_requests_as_misses_against_the_newest_slo() -> None:
    result = cli("slo", api=FakeApi(answers=SLO_ANSWERS))
    # 1970 of 2000 is 98.5 %.
    assert result.out.splitlines() == [
        "SERVICE  SLO MS  WANTED      MET  REQUESTS  REJECTED    LEFT  BURN 1H    6H",
        "chat         40    98 %  98.50 %     2,000        10  24.5 %    21.50  0.75",
        "idle         40    98 %        -         0         0       -        -     -",
    ]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("90s", timedelta(seconds=90)),
        ("24h", timedelta(days=1)),
        ("1h30m", timedelta(minutes=90)),
        ("2w", timedelta(days=14)),
        ("1.5d", timedelta(hours=36)),
        ("5", timedelta(seconds=5)),
        ("0.5", timedelta(seconds=0.5)),
    ],
)
def test_durations(words: str, wanted: timedelta) -> None:
    assert parse_duration(words) == wanted


@pytest.mark.parametrize(
    ("words", "wanted_s"),
    [
        ("5", 5.0),
        ("0", 0.0),
        ("0.25", 0.25),
        ("60s", 60.0),
        ("5m", 300.0),
        (10.0, 10.0),
    ],
)
def test_bounded_durations_are_seconds_or_have_a_unit(
    words: str | float, wanted_s: float
) -> None:
    assert seconds_within(0.0, 3600.0)(words) == wanted_s


@pytest.mark.parametrize("words", ["2h", "3601", "-1", "inf", "nan", "1e3", ""])
def test_a_duration_out_of_bounds_is_wrong_usage(words: str) -> None:
    with pytest.raises(typer.BadParameter):
        seconds_within(0.0, 3600.0)(words)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("30m", NOW - timedelta(minutes=30)),
        ("2026-02-01", datetime(2026, 2, 1, tzinfo=UTC)),
        ("2026-02-01T10:00+02:00", datetime(2026, 2, 1, 8, tzinfo=UTC)),
    ],
)
def test_moments(words: str, wanted: datetime) -> None:
    assert parse_moment(words, NOW) == wanted


@pytest.mark.parametrize("words", ["2026-13-01", "yesterday", "2026", "1767225600"])
def test_what_is_no_moment_is_wrong_usage(words: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_moment(words, NOW)


def test_events_come_oldest_first() -> None:
    api = FakeApi(
        answers={
            "GET events": {
                "items": [event(2), event(1, "LoopHeld")],
                "next_cursor": None,
            }
        }
    )
    result = cli("events --kind LoopHeld --subject plan/1", api=api)
    assert result.out.splitlines() == [
        "2026-03-01 12:00:00 UTC  LoopHeld          plan/1 by controller: chat: +1 on T4",
        "2026-03-01 12:00:00 UTC  PlanPushed        plan/2 by controller: chat: +1 on T4",
    ]
    assert dict(api.requests[0].url.params) == {
        "limit": "50",
        "kind": "LoopHeld",
        "subject": "plan/1",
    }


def test_following_shows_each_new_event_once_until_interrupted() -> None:
    api = FakeApi(
        answers={"GET events": {"items": [event(2), event(1)], "next_cursor": None}}
    )
    arriving = [
        [event(4), event(3), event(2), event(1)],
        [event(4), event(3), event(2), event(1)],
    ]

    def sleep(_seconds: float) -> None:
        if not arriving:
            raise KeyboardInterrupt
        api.answers["GET events"] = {"items": arriving.pop(0), "next_cursor": None}

    result = cli("events -f", api=api, sleep=sleep)
    assert result.code == 0
    assert [line.split()[4] for line in result.out.splitlines()] == [
        "plan/1",
        "plan/2",
        "plan/3",
        "plan/4",
    ]


def test_following_begins_after_the_newest_event_even_where_none_fits_the_filter() -> (
    None
):
    """Otherwise the first look would show the whole past."""
    shown: list[str] = []

    def api(request: httpx2.Request) -> httpx2.Response:
        is_filtered = "kind" in request.url.params
        shown.append(str(request.url.query))
        return httpx2.Response(
            200, json={"items": [] if is_filtered else [event(7)], "next_cursor": None}
        )

    def sleep(_seconds: float) -> None:
        if len(shown) > 3:
            raise KeyboardInterrupt

    assert cli("events -f --kind Never", api=api, sleep=sleep).out == ""


def test_cost_is_written_as_csv_without_a_total() -> None:
    result = cli(
        "cost -o csv", api=FakeApi(answers={"GET reports/cost_by_service_hour": COST})
    )
    assert result.out.splitlines() == [
        "service,gpu_hours,cost_usd,whole_gpu_cost_usd,memory_cost_usd",
        "chat,1.5,4.5,6.0,5.0",
        "(idle),0.5,1.5,0.0,1.0",
    ]


def test_budgets_are_in_the_documents_by_period() -> None:
    chat, idle = json.loads(cli("slo -o json", api=FakeApi(answers=SLO_ANSWERS)).out)[
        "items"
    ]
    assert chat["budget_left_percent"] == 24.5
    assert [
        (row["period"], row["burn_rate"], row["is_alerting"]) for row in chat["periods"]
    ] == [
        ("1 h", 21.5, True),
        ("6 h", 0.75, False),
        ("30 d", 0.75, None),
    ]
    assert idle["budget_left_percent"] is None
