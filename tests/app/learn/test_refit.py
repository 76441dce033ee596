"""Refits: from samples to operating points next to those in force, in a process with a time limit."""

import asyncio
import math
import os
import threading
import time
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from app.base.errors import InvalidRequest, Unavailable
from app.catalogue.catalogue import (
    list_networks,
    load_gpu_types,
    load_layers,
    load_profiles,
)
from app.learn.refit import (
    RefitRequest,
    error_of,
    run_in_process,
    run_refit,
)
from solvers.predict.data.samples import Neighbour, Samples, make_queries, make_samples
from solvers.types.errors import InvalidInput
from solvers.types.problem import OperatingPoint, OperatingPoints
from tests.app.fleets import FAST, POINTS
from tests.waiting import PATIENCE_S

SHARES, BATCHES = (10.0, 25.0, 50.0, 75.0, 100.0), (1.0, 2.0, 4.0, 8.0)


def true_ms(batch: float, share: float) -> float:
    return (2.0 + 3.0 * batch) * 100.0 / (share + 10.0)


def samples(network: str = "net", *, memory: bool = True) -> Samples:
    conditions = [(batch, share) for batch in BATCHES for share in SHARES]
    size = len(conditions)
    at = make_queries(
        [network] * size,
        ["fast"] * size,
        batch=[batch for batch, _ in conditions],
        sm_percent=[share for _, share in conditions],
    )
    return make_samples(
        at,
        [true_ms(*each) for each in conditions],
        memory_mib=[900.0 + 10.0 * batch for batch, _ in conditions]
        if memory
        else None,
    )


def request_of(found: Samples, **changes: object) -> RefitRequest:
    return replace(
        RefitRequest(network="net", samples=found, gpu_types=(FAST,)), **changes
    )  # type: ignore[arg-type]


def a_profile(factor: float) -> OperatingPoints:
    rows = tuple(
        OperatingPoint(
            share,
            int(batch),
            1000.0,
            0.0,
            0.0,
            factor * true_ms(batch, share),
            950.0,
            30.0,
            0.1,
        )
        for batch in BATCHES
        for share in (50.0, 100.0)
    )
    return replace(POINTS, rows=rows)


def test_samples_become_operating_points_with_the_error_of_those_in_force() -> None:
    answer = run_refit(request_of(samples(), present=(a_profile(1.2),)))
    (candidate,) = answer.candidates
    assert candidate.present_error == pytest.approx(0.2)
    assert candidate.error < 0.02
    rows = candidate.performance.points.rows
    assert {row[:3] for row in rows} == {row[:3] for row in a_profile(1.0).rows}
    assert all(
        row.solo_ms == pytest.approx(true_ms(row.batch, row.sm_percent), rel=0.03)
        for row in rows
    )
    assert {fit.quantity for fit in answer.fits} == {"latency_ms", "memory_mib"}
    assert answer.problems == ()


def test_only_what_concerns_the_network_is_kept() -> None:
    both, other = samples(), samples("other")
    joined = make_samples(
        make_queries(
            both.at.network + other.at.network,
            both.at.gpu_type + other.at.gpu_type,
            batch=np.concatenate((both.at.batch, other.at.batch)),
            sm_percent=np.concatenate((both.at.sm_percent, other.at.sm_percent)),
            neighbours=[
                *((),) * len(both),
                *((Neighbour("net", 1.0, 50.0),),) * len(other),
            ],
        ),
        np.concatenate((both.latency_ms, 1.3 * other.latency_ms)),
        memory_mib=np.full(len(both) + len(other), 900.0),
    )
    answer = run_refit(request_of(joined))
    assert {fit.group.network for fit in answer.fits} <= {"net", ""}
    assert [
        candidate.performance.points.network for candidate in answer.candidates
    ] == ["net"]


def test_what_cannot_be_made_is_said() -> None:
    answer = run_refit(request_of(samples(memory=False)))
    assert answer.candidates == ()
    ((gpu_type, why),) = answer.problems
    assert gpu_type == "fast" and "memory_mib" in why
    few = run_refit(request_of(samples().take(np.arange(1))))
    assert few.candidates == () and len(few.problems) == 1


def test_errors_are_compared_at_the_same_conditions_only() -> None:
    assert error_of(a_profile(1.1), samples(), FAST) == pytest.approx(0.1)
    assert error_of(POINTS, samples().take(np.arange(2)), FAST) is None


def test_a_network_that_was_only_measured_beside_neighbours_needs_its_memory_known() -> (
    None
):
    found = samples()
    at = replace(found.at, neighbours=((Neighbour("net", 1.0, 50.0),),) * len(found))
    ((gpu_type, why),) = run_refit(request_of(replace(found, at=at))).problems
    assert gpu_type == "fast" and "memory_mib" in why
    known = run_refit(request_of(replace(found, at=at), present=(a_profile(1.0),)))
    assert known.problems == () and known.candidates[0].present_error is None


def test_times_at_full_quota_are_not_made_of_samples_at_part_of_it() -> None:
    found = samples()
    at = replace(found.at, time_quota_percent=np.full(len(found), 20.0))
    answer = run_refit(request_of(replace(found, at=at)))
    assert answer.candidates == () and "full time quota" in answer.problems[0][1]
    assert any(fit.quantity == "latency_ms" for fit in answer.fits)


def test_samples_at_part_of_the_time_or_of_the_power_say_nothing_of_a_profile() -> None:
    found = samples()
    throttled = replace(found.at, time_quota_percent=np.full(len(found), 20.0))
    limited = replace(found.at, power_limit_w=np.full(len(found), 100.0))
    for at in (throttled, limited):
        assert (
            error_of(
                a_profile(1.1),
                replace(found, at=at, latency_ms=5.0 * found.latency_ms),
                FAST,
            )
            is None
        )


@pytest.mark.parametrize("bad", [math.nan, -1.0])
def test_impossible_samples_are_refused(bad: float) -> None:
    wrong = make_samples(samples().at, np.full(len(samples()), bad))
    with pytest.raises(InvalidInput):
        run_refit(request_of(wrong))


def double(number: int) -> int:
    return 2 * number


def sleep_long(number: int) -> int:
    time.sleep(60.0)
    return number


def die(number: int) -> int:
    os._exit(number)


def refuse(number: int) -> int:
    raise InvalidInput("rows[0].batch", f"must not be {number}")


@pytest.mark.integration
def test_work_runs_in_a_process_that_ends_with_it_or_at_its_limit() -> None:
    assert asyncio.run(run_in_process(double, 21, limit_s=PATIENCE_S)) == 42
    with pytest.raises(Unavailable, match=r"stopped after 0\.2 s"):
        asyncio.run(run_in_process(sleep_long, 1, limit_s=0.2))
    with pytest.raises(Unavailable, match="died"):
        asyncio.run(run_in_process(die, 1, limit_s=PATIENCE_S))
    with pytest.raises(InvalidRequest, match="must not be 7"):
        asyncio.run(run_in_process(refuse, 7, limit_s=PATIENCE_S))


class Long:
    """A request that is handed over, as the number 21, only when the event loop goes on meanwhile."""

    def __init__(self, goes_on: threading.Event) -> None:
        self.goes_on = goes_on

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        assert self.goes_on.wait(PATIENCE_S)
        return int, (21,)


@pytest.mark.integration
def test_nothing_waits_while_a_long_request_is_handed_over() -> None:
    async def double_later() -> int:
        goes_on = threading.Event()
        asyncio.get_running_loop().call_soon(goes_on.set)
        handed_over = cast(int, Long(goes_on))
        return await run_in_process(double, handed_over, limit_s=PATIENCE_S)

    assert asyncio.run(double_later()) == 42


def a_cold_request(
    network: str, gpu_type: str, *, sampled_on: str | None = None
) -> RefitRequest:
    """The shipped network as if it was never profiled on the GPU type; sampled on another where that is given."""
    shipped = load_profiles(
        list_networks("inference"), [gpu_type, *([sampled_on] if sampled_on else [])]
    )
    own = next(
        (
            entry
            for entry in shipped
            if (entry.network, entry.gpu_type) == (network, sampled_on)
        ),
        None,
    )
    rows = (
        [
            row
            for row in own.rows
            if row.clock_mhz == max(each.clock_mhz for each in own.rows)
        ]
        if own
        else []
    )
    at = make_queries(
        [network] * len(rows),
        [sampled_on or ""] * len(rows),
        batch=[float(row.batch) for row in rows],
        sm_percent=[row.sm_percent for row in rows],
    )
    return RefitRequest(
        network=network,
        samples=make_samples(
            at,
            [row.solo_ms for row in rows],
            memory_mib=[row.memory_mib for row in rows],
        ),
        gpu_types=load_gpu_types(),
        other_profiles=tuple(entry for entry in shipped if entry.network != network),
        fleet=frozenset({gpu_type}),
        layers=load_layers(),
    )


@pytest.mark.parametrize(
    ("network", "sampled_on", "technique"),
    [
        # By hand: tests/solvers/predict/estimate.
        pytest.param(
            "resnet50", "V100-32GB", "gpu_type_ratio", marks=pytest.mark.thorough
        ),
        ("resnet50", None, "layer_counts"),
        pytest.param("vgg16", None, "layer_counts", marks=pytest.mark.thorough),
    ],
)
def test_a_network_is_estimated_where_it_was_never_measured(
    network: str, sampled_on: str | None, technique: str
) -> None:
    answer = run_refit(a_cold_request(network, "T4", sampled_on=sampled_on))
    assert answer.problems == ()
    (candidate,) = (entry for entry in answer.candidates if entry.is_estimated)
    points = candidate.performance.points
    assert (points.network, points.gpu_type, candidate.technique) == (
        network,
        "T4",
        technique,
    )
    (shipped,) = load_profiles([network], ["T4"])
    known = {row[:3]: row for row in shipped.rows}
    z_scores = [
        abs(math.log(known[row[:3]].solo_ms / row.solo_ms)) / sigma
        for row, sigma in zip(
            points.rows, candidate.performance.latency_sigma, strict=True
        )
        if row[:3] in known
    ]
    assert len(z_scores) >= 30
    assert sum(z_score <= 2.0 for z_score in z_scores) >= 0.9 * len(z_scores)
    assert min(candidate.performance.latency_sigma) >= 0.05
    assert all(
        row.memory_mib >= 0.5 * known[row[:3]].memory_mib
        for row in points.rows
        if row[:3] in known
    )


def test_what_is_profiled_or_not_in_the_fleet_is_not_estimated() -> None:
    request = a_cold_request("resnet50", "T4")
    assert run_refit(replace(request, fleet=frozenset())).candidates == ()
    assert (
        run_refit(
            replace(request, present=load_profiles(["resnet50"], ["T4"]))
        ).candidates
        == ()
    )
    nameless = run_refit(replace(request, network="mine"))
    ((gpu_type, why),) = nameless.problems
    assert gpu_type == "T4" and "mine" in why
