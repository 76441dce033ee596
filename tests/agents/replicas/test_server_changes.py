"""What a server did between two pages: series by series, and who is another server."""

from collections.abc import Mapping

import pytest

from agents.replicas.server_changes import (
    AnotherServer,
    MayBeAnother,
    ServerPage,
    counts_since,
)
from agents.replicas.server_metrics import ServerCounts, read_page

READ_S = 1_772_366_400.0
"""When the first page is read."""


def a_page(
    counts: Mapping[str, float],
    *,
    started_s: float | None = None,
    at_s: float = READ_S,
    server_s: float | None = None,
    more: str = "",
) -> ServerPage:
    """Requests that each engine has served."""
    lines = [more]
    for engine, count in counts.items():
        labels = f'engine="{engine}",model_name="m"'
        lines += [
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {count}',
            f'vllm:e2e_request_latency_seconds_bucket{{{labels},le="0.3"}} {count}',
            f'vllm:e2e_request_latency_seconds_bucket{{{labels},le="+Inf"}} {count}',
        ]
    if started_s is not None:
        lines.append(f"process_start_time_seconds {started_s}")
    page = read_page("\n".join([*lines, ""]))
    return ServerPage(at_s=at_s, page=page, server_s=server_s)


def since(before: ServerPage, after: ServerPage) -> ServerCounts:
    return counts_since(before, after, "vllm", "m")


LONG_AGO_S = READ_S - 86_400.0
SOON_S = READ_S + 3.0


@pytest.mark.parametrize(
    ("before", "after", "served"),
    [
        ({"0": 1000}, {"0": 1010}, 10),
        # One engine of several began again: 10 and 200 came, where the sum of both has fallen.
        ({"0": 1000, "1": 1000}, {"0": 10, "1": 1200}, 210),
        ({"0": 1000, "1": 1000}, {"0": 1500, "1": 20}, 520),
        # An engine that is new, and one that is gone.
        ({"0": 1000}, {"0": 1010, "1": 7}, 17),
        ({"0": 1000, "1": 1000}, {"0": 1010}, 10),
    ],
)
@pytest.mark.parametrize("started_s", [None, LONG_AGO_S])
def test_each_series_is_compared_with_itself(
    before: dict[str, float],
    after: dict[str, float],
    served: float,
    started_s: float | None,
) -> None:
    found = since(
        a_page(before, started_s=started_s), a_page(after, started_s=started_s)
    )
    assert found.served == served
    assert found.latency is not None
    assert sum(found.latency.counts) == served


def test_all_that_an_engine_counts_begins_again_with_it() -> None:
    """Also what has grown beyond the earlier value since."""
    length = 'vllm:request_success_total{{engine="0",model_name="m",finished_reason="length"}} {}'
    found = since(
        a_page({"0": 1000, "1": 5}, more=length.format(3)),
        a_page({"0": 10, "1": 5}, more=length.format(4)),
    )
    assert found.served == 10 + 4


def test_gauges_say_by_how_much_they_changed_and_ratios_what_they_are() -> None:
    gauges = (
        'vllm:num_requests_running{{engine="0",model_name="m"}} {}\n'
        'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {}'
    )
    found = since(
        a_page({"0": 5}, more=gauges.format(9, 0.75)),
        a_page({"0": 6}, more=gauges.format(4, 0.5)),
    )
    assert (found.running, found.memory_used_ratio) == (-5, 0.5)


@pytest.mark.parametrize("served", [5, 999, 2000])
def test_a_new_process_counts_from_zero(served: float) -> None:
    before = a_page({"0": 1000}, started_s=LONG_AGO_S)
    assert since(before, a_page({"0": served}, started_s=SOON_S)).served == served


def test_a_servers_clock_may_differ_from_ours() -> None:
    """It is an hour slow, and began again three seconds after the first page."""
    slow_s = READ_S - 3600.0
    before = a_page({"0": 1000}, started_s=LONG_AGO_S, server_s=slow_s)
    assert since(before, a_page({"0": 5}, started_s=slow_s + 3.0)).served == 5


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The counters of one process never fall.
        ((1000, LONG_AGO_S), (500, LONG_AGO_S)),
        # Back to an older one.
        ((5, SOON_S), (1010, LONG_AGO_S)),
    ],
)
def test_two_servers_that_take_turns_are_told_apart(
    before: tuple[float, float], after: tuple[float, float]
) -> None:
    pages = [a_page({"0": count}, started_s=start) for count, start in (before, after)]
    with pytest.raises(AnotherServer):
        since(*pages)


@pytest.mark.parametrize("served", [500, 9000])
def test_a_process_that_ran_before_may_have_taken_the_place_of_the_other(
    served: float,
) -> None:
    before = a_page({"0": 1000}, started_s=LONG_AGO_S)
    with pytest.raises(MayBeAnother):
        since(before, a_page({"0": served}, started_s=LONG_AGO_S + 600.0))


def test_without_a_start_nobody_can_tell_a_restart_from_another_server() -> None:
    with pytest.raises(MayBeAnother):
        since(a_page({"0": 1000, "1": 900}), a_page({"0": 10, "1": 10}))


def test_another_networks_counters_are_not_looked_at() -> None:
    other = 'vllm:request_success_total{{model_name="other"}} {}'
    found = since(
        a_page({"0": 10}, more=other.format(500)),
        a_page({"0": 30}, more=other.format(2)),
    )
    assert found.served == 20
