"""Which network serves: the cheapest above the floor, and not another one at every change of the rate."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.tick.choose_network import choose_variant, choose_variants, variant_costs
from solvers.types.problem import OperatingPoint, OperatingPoints, Problem
from solvers.types.state import Service, Slo, Variant
from tests.examples import examples
from tests.solvers.instances import a_problem, a_row, a_service, a_type

# By the law a replica may work half of the time at batch 1 if its SLO is twice its time at least: a row of 5 ms carries
# 100 rps. `large` needs a whole GPU for that, `medium` half of one, `small` a quarter; a GPU costs 1 USD per hour.
LARGE, MEDIUM, SMALL = (
    Variant(network=name, accuracy=at)
    for name, at in (("large", 0.8), ("medium", 0.7), ("small", 0.6))
)
SHARES = {"large": 100.0, "medium": 50.0, "small": 25.0}


def points(network: str, *rows: OperatingPoint) -> OperatingPoints:
    return OperatingPoints(network=network, gpu_type="gpu", sensitivity=0.0, rows=rows)


def problem(rate_rps: float = 100.0, **changes: object) -> Problem:
    demand = a_service("chat", rate_rps=rate_rps, network="large", **changes)
    own = tuple(points(name, a_row(share, 5.0)) for name, share in SHARES.items())
    return replace(a_problem(demand, types=(a_type(),)), points=own)


def service(
    *, floor: float = 0.0, variants: tuple[Variant, ...] = (LARGE, MEDIUM, SMALL)
) -> Service:
    slo = Slo(latency_ms=100.0, percentile=0.95)
    return Service(
        name="chat", network="large", slo=slo, variants=variants, accuracy_floor=floor
    )


@pytest.mark.parametrize(
    ("floor", "network"),
    [(0.0, "small"), (0.6, "small"), (0.61, "medium"), (0.75, "large")],
)
def test_the_cheapest_above_the_floor_serves_and_none_below(
    floor: float, network: str
) -> None:
    choice = choose_variant(problem(), service(floor=floor))
    assert choice.network == network
    assert all(each.variant.accuracy >= floor for each in choice.costs)


def test_what_each_would_cost_is_told() -> None:
    # 200 rps are two replicas: two GPUs, two halves, two quarters. Watts have no price.
    costs = variant_costs(problem(200.0), service())
    assert [(each.variant.network, each.usd_per_hour) for each in costs] == [
        ("small", pytest.approx(0.5)),
        ("medium", pytest.approx(1.0)),
        ("large", pytest.approx(2.0)),
    ]


def test_energy_and_idle_watts_count() -> None:
    # At 10 USD/kWh a whole GPU costs 1 + 0.5 for 50 W idle, and 1 W per percent is 0.01: 2.5; a quarter: 0.375 + 0.25.
    dear = replace(problem(), energy_price_usd_per_kwh=10.0)
    costs = {
        each.variant.network: each.usd_per_hour
        for each in variant_costs(dear, service())
    }
    assert costs["large"] == pytest.approx(2.5)
    assert costs["small"] == pytest.approx(0.625)


def test_where_none_can_serve_what_runs_goes_on() -> None:
    late = replace(
        problem(),
        services=(a_service("chat", rate_rps=9.0, network="large", slo_ms=9.9),),
    )
    assert choose_variant(late, service()).network == "large"
    assert choose_variant(late, service(), running="small").network == "small"
    assert choose_variant(late, service(), running="gone").network == "large"


def test_replicas_that_are_allowed_and_wanted_are_reckoned_with() -> None:
    # 300 rps with two replicas at most: no row of 100 rps will do; min_replicas 4 cost four quarters.
    assert choose_variant(problem(300.0, max_replicas=2), service()).network == "large"
    assert variant_costs(problem(1.0, min_replicas=4), service())[
        0
    ].usd_per_hour == pytest.approx(1.0)


def test_other_gpu_types_than_the_service_may_use_do_not_count() -> None:
    types = (a_type(), a_type("other", price_usd_per_hour=0.01))
    cheap = OperatingPoints(
        network="large", gpu_type="other", sensitivity=0.0, rows=(a_row(100.0, 5.0),)
    )
    both = replace(problem(), gpu_types=types, points=(*problem().points, cheap))
    assert choose_variant(both, service()).network == "large"
    bound = replace(
        both, services=(replace(both.services[0], allowed_gpu_types=("gpu",)),)
    )
    assert choose_variant(bound, service()).network == "small"
    gone = replace(both, gpu_types=(types[0], replace(types[1], count=0)))
    assert choose_variant(gone, service()).network == "small"


def test_equal_costs_go_to_the_more_accurate() -> None:
    alike = replace(
        problem(), points=tuple(points(name, a_row(50.0, 5.0)) for name in SHARES)
    )
    assert choose_variant(alike, service()).network == "large"


@pytest.mark.parametrize(("share", "network"), [(46.0, "medium"), (44.0, "small")])
def test_what_serves_is_replaced_only_by_what_saves_a_tenth(
    share: float, network: str
) -> None:
    # 0.50 USD against 0.46 and 0.44: a tenth of 0.50 is 0.05.
    near = replace(
        problem(),
        points=(points("medium", a_row(50.0, 5.0)), points("small", a_row(share, 5.0))),
    )
    pair = service(variants=(MEDIUM, SMALL))
    assert choose_variant(near, pair, running="medium").network == network
    assert choose_variant(near, pair).network == "small"


def test_what_falls_below_a_raised_floor_is_replaced_at_once() -> None:
    assert (
        choose_variant(problem(), service(floor=0.65), running="small").network
        == "medium"
    )


def test_services_without_variants_are_not_asked() -> None:
    plain = replace(service(), name="plain", variants=())
    found = choose_variants(problem(), [plain, service()], {})
    assert [(each.service, each.network) for each in found] == [("chat", "small")]


@settings(max_examples=examples(60))
@given(
    shares=st.lists(
        st.sampled_from((5.0, 10.0, 25.0, 50.0, 75.0, 100.0)), min_size=3, max_size=3
    ),
    accuracy=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3),
    floor=st.floats(0.0, 1.0),
    rates=st.lists(st.floats(0.0, 2000.0), min_size=2, max_size=6),
)
def test_never_below_the_floor_nor_dearer_than_a_tenth_above_the_best(
    shares: list[float], accuracy: list[float], floor: float, rates: list[float]
) -> None:
    variants = tuple(
        Variant(network=name, accuracy=at)
        for name, at in zip(SHARES, accuracy, strict=True)
    )
    known = tuple(
        points(name, a_row(share, 5.0))
        for name, share in zip(SHARES, shares, strict=True)
    )
    asked, running = service(floor=floor, variants=variants), None
    for rate in rates:
        now = replace(problem(rate), points=known)
        choice = choose_variant(now, asked, running=running)
        assert (
            choose_variant(
                now, replace(asked, variants=variants[::-1]), running=running
            )
            == choice
        )
        if not choice.costs:
            assert choice.network == "large"
            continue
        costs = {each.variant.network: each.usd_per_hour for each in choice.costs}
        best, own = choice.costs[0].usd_per_hour, costs[choice.network]
        assert (
            best is not None and own is not None and own * 0.9 <= best * (1.0 + 1e-12)
        )
        running = choice.network
