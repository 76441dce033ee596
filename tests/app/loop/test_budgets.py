"""Degrade: the ladder by hand, and the laws that keep it from flapping and from touching the wrong ones."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.loop.budgets import (
    DEGRADED,
    KEPT,
    RESTORE_S,
    SETTLE_S,
    BudgetState,
    Spending,
    degraded,
    describe_degraded,
    max_steps,
    next_step,
    shares_of,
    spending_of,
    step_event,
)
from app.loop.forecast import make_demands
from app.store.degradation import Degradation
from solvers.types.state import Demand, Mode, Service
from tests.app.fleets import a_service
from tests.app.snapshots import NOW, a_snapshot, a_state, windows_of


def of(name: str, priority: float, project: str = "web") -> Service:
    return replace(a_service(name), priority=priority, project=project)


def down(
    step: int,
    *,
    project: str | None = "web",
    protected: float = 100.0,
    budget: str = "b",
) -> Degradation:
    return Degradation(
        budget=budget, project=project, step=step, protected_priority=protected
    )


SERVICES = (
    of("batch", 1.0),
    of("chat", 10.0),
    of("search", 10.0),
    of("core", 100.0),
    of("other", 1.0, "team"),
)


@pytest.mark.parametrize(
    ("step", "shares"),
    [
        (0, {}),
        (1, {"batch": 0.5}),
        (2, {"batch": 0.25}),
        (3, {"batch": 0.25, "chat": 0.5, "search": 0.5}),
        (4, {"batch": 0.25, "chat": 0.25, "search": 0.25}),
        (99, {"batch": 0.25, "chat": 0.25, "search": 0.25}),
    ],
)
def test_the_least_priority_goes_down_first_and_whole(
    step: int, shares: dict[str, float]
) -> None:
    assert shares_of(SERVICES, [down(step)]) == shares
    assert max_steps(SERVICES, down(step)) == 4


def test_the_cluster_s_budget_touches_every_project_and_the_least_share_counts() -> (
    None
):
    assert shares_of(SERVICES, [down(2, project=None), down(1)]) == {
        "batch": 0.25,
        "other": 0.25,
    }


def test_services_that_are_off_and_those_from_the_protected_priority_on_are_no_rungs() -> (
    None
):
    services = (replace(SERVICES[0], mode=Mode.OFF), *SERVICES[1:])
    assert shares_of(services, [down(1)]) == {"chat": 0.5, "search": 0.5}
    assert max_steps(services, down(1, protected=10.0)) == 0
    assert shares_of(services, [down(7, protected=10.0)]) == {}


def test_a_degraded_demand_is_a_share_without_reserve_and_what_is_kept_stays() -> None:
    # 100 rps of which 20 are for bursts and 8 are headroom: half of the other 80.
    demand = Demand(
        service="chat", arrival_rate_rps=100.0, reserve_rps=20.0, headroom_rps=8.0
    )
    kept = Demand(service="search", arrival_rate_rps=30.0, method=KEPT)
    assert degraded([demand, kept], {"chat": 0.5, "search": 0.5}) == (
        Demand(
            service="chat", arrival_rate_rps=40.0, headroom_rps=4.0, method=DEGRADED
        ),
        kept,
    )


def test_the_forecast_of_a_degraded_service_does_not_shrink_from_tick_to_tick() -> None:
    state = a_state(services=(of("chat", 1.0),))
    plain = a_snapshot(state=state, windows=windows_of("chat", [100] * 30))
    half = make_demands(replace(plain, degradations=(down(1),)))[0]
    (whole,) = make_demands(plain)
    assert half.arrival_rate_rps == pytest.approx(whole.arrival_rate_rps / 2)
    assert half.method == DEGRADED


def spending(step: int = 0, **facts: float | bool) -> Spending:
    base = {
        "settled_s": SETTLE_S,
        "is_in_force": True,
        "is_spent": False,
        "is_hourly": False,
    }
    rates = {"usd_per_hour": 3.0, "pace_usd_per_hour": 2.0}
    return Spending(step=step, **(base | rates | facts))  # type: ignore[arg-type]


def slack(**facts: float | bool) -> Spending:
    """Below an hour's pace, at the second step."""
    return spending(2, is_hourly=True, usd_per_hour=1.6, **facts)


@pytest.mark.parametrize(
    ("now", "after"),
    [
        # Dearer than its pace, but not spent: that is what a month is for.
        (spending(), 0),
        (spending(is_spent=True), 1),
        (spending(1, is_spent=True), 2),
        (spending(1, is_spent=True, settled_s=SETTLE_S - 1), 1),
        # What that step came to is not known yet.
        (spending(1, is_spent=True, is_in_force=False), 1),
        (slack(settled_s=RESTORE_S, is_in_force=False), 2),
        (spending(2, is_in_force=False), 0),  # Its day is over.
        # At its pace: that is enough.
        (spending(1, is_spent=True, usd_per_hour=2.0), 1),
        (spending(4, is_spent=True), 4),
        (spending(3), 0),  # A new day, or a raised limit.
        (spending(is_hourly=True), 1),  # 3 USD per hour of 2.
        (spending(1, is_hourly=True, usd_per_hour=2.0, settled_s=RESTORE_S), 1),
        (spending(1, is_hourly=True, usd_per_hour=1.6, settled_s=RESTORE_S - 1), 1),
        (slack(settled_s=RESTORE_S), 1),
        (spending(0, is_hourly=True, usd_per_hour=0.0, settled_s=RESTORE_S), 0),
        (spending(9, is_spent=True, usd_per_hour=1.0), 4),  # Services went: 4 are most.
    ],
)
def test_the_next_step(now: Spending, after: int) -> None:
    assert next_step(now, 4) == after


@given(
    now=st.builds(
        Spending,
        step=st.integers(0, 6),
        settled_s=st.floats(0, 2 * RESTORE_S),
        is_spent=st.booleans(),
        is_hourly=st.booleans(),
        usd_per_hour=st.floats(0, 10),
        pace_usd_per_hour=st.floats(0.1, 10),
    ),
    most=st.integers(0, 6),
)
def test_it_goes_one_step_at_most_and_never_further_down_at_the_pace(
    now: Spending, most: int
) -> None:
    after = next_step(now, most)
    assert 0 <= after <= most
    assert after <= now.step + 1
    if now.usd_per_hour <= now.pace_usd_per_hour:
        assert after <= now.step
    if after > now.step:
        assert now.is_spent or now.is_hourly
    # What was just taken is not given back while the same is spent.
    if after > now.step:
        assert next_step(replace(now, step=after, settled_s=0.0), most) == after


@given(
    step=st.integers(0, 12),
    protected=st.floats(0.5, 200),
    priorities=st.lists(st.floats(0.5, 200), max_size=8),
)
def test_nobody_loses_more_than_somebody_less_important(
    step: int, protected: float, priorities: list[float]
) -> None:
    services = [
        of(f"s{number}", priority) for number, priority in enumerate(priorities)
    ]
    degradation = down(step, protected=protected)
    shares = shares_of(services, [degradation])
    further = shares_of(services, [replace(degradation, step=step + 1)])
    by_priority = sorted(services, key=lambda service: service.priority)
    got = [shares.get(service.name, 1.0) for service in by_priority]
    assert got == sorted(got)
    assert all(
        shares.get(service.name, 1.0) == 1.0
        for service in services
        if service.priority >= protected
    )
    assert all(
        further.get(service.name, 1.0) <= shares.get(service.name, 1.0)
        for service in services
    )


STATE = BudgetState(
    name="b",
    project="web",
    period="day",
    action="degrade",
    limit_usd=Decimal(48),
    since=NOW - timedelta(hours=12),
    until=NOW + timedelta(hours=12),
    spent_usd=Decimal(50),
    spent_percent=Decimal(104),
    usd_per_hour=Decimal(7),
    avoidable_usd_per_hour=Decimal(5),
    projected_usd=Decimal(110),
    protected_priority=100.0,
    degrade_step=1,
    degrade_at=NOW - timedelta(minutes=6),
)


def test_a_day_s_pace_is_a_24th_of_it_and_another_action_takes_nothing() -> None:
    assert spending_of(STATE, NOW) == Spending(
        step=1,
        settled_s=360.0,
        is_in_force=True,
        is_spent=True,
        is_hourly=False,
        usd_per_hour=5.0,
        pace_usd_per_hour=2.0,
    )
    assert replace(STATE, action="warn").degradation.step == 0


def test_it_is_told_in_words() -> None:
    event = step_event(STATE, 2, shares_of(SERVICES, [down(2)]), NOW)
    assert (event.kind, event.subject) == ("BudgetDegrades", "budget/b")
    assert event.reason == (
        "50.00 of 48.00 USD of this day are spent by project web; the plan in force costs 7.00 USD per hour, "
        "5.00 of them for GPUs that are not already paid for; "
        "planned of the demand: batch for 25 %"
    )
    back = step_event(STATE, 0, {}, NOW)
    assert back.kind == "BudgetRestores" and back.reason.endswith(
        "every service is planned for its whole demand"
    )
    assert describe_degraded(SERVICES, [down(3), down(0, budget="idle")]) == (
        "budget b is exceeded: planned of the demand: batch for 25 %, chat for 50 %, search for 50 %",
    )
