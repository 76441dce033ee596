"""What a kWh costs once its carbon has a price."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from app.loop.make_problem import carbon_g_per_kwh, make_problem, price_usd_per_kwh
from app.manifests import objects as manifests
from app.manifests.to_types import to_settings
from app.store.store import PolicySettings
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan
from solvers.types.state import Demand
from tests.app.fleets import POINTS
from tests.app.snapshots import a_state

STATE = a_state()
NOON = datetime(2026, 7, 1, 12, 30, tzinfo=UTC)
BY_HOUR = tuple(float(10 * hour) for hour in range(24))


@pytest.mark.parametrize(
    ("series", "at", "grams"),
    [
        ((), NOON, 0.0),
        ((400.0,), NOON, 400.0),
        ((400.0,), None, 400.0),
        (BY_HOUR, NOON, 120.0),
        (BY_HOUR, None, 115.0),
    ],
)
def test_the_grid_emits_by_the_hour(
    series: tuple[float, ...], at: datetime | None, grams: float
) -> None:
    # The mean of 0, 10, … 230 is 115.
    assert carbon_g_per_kwh(PolicySettings(carbon_g_per_kwh=series), at) == grams


def test_carbon_makes_energy_dearer() -> None:
    # 400 g/kWh · 100 USD/t = 40,000 / 1,000,000 = 0.04 USD/kWh.
    priced = PolicySettings(
        energy_price_usd_per_kwh=0.2,
        carbon_price_usd_per_t=100.0,
        carbon_g_per_kwh=(400.0,),
    )
    assert price_usd_per_kwh(priced, NOON) == pytest.approx(0.24)
    assert (
        price_usd_per_kwh(
            PolicySettings(energy_price_usd_per_kwh=0.2, carbon_g_per_kwh=(400.0,)),
            NOON,
        )
        == 0.2
    )
    assert (
        price_usd_per_kwh(
            PolicySettings(energy_price_usd_per_kwh=0.2, carbon_price_usd_per_t=100.0),
            NOON,
        )
        == 0.2
    )


def test_plans_reckon_with_the_hour_that_they_are_made_in() -> None:
    settings = PolicySettings(carbon_price_usd_per_t=1000.0, carbon_g_per_kwh=BY_HOUR)
    problem = make_problem(
        STATE,
        (POINTS,),
        [Demand(service=STATE.services[0].name, arrival_rate_rps=1.0)],
        settings,
        target=None,
        at=NOON,
    )
    assert problem.energy_price_usd_per_kwh == pytest.approx(0.12)
    row, gpu_type = POINTS.rows[0], problem.gpu_type(POINTS.gpu_type)
    replica = ReplicaPlan(
        service=problem.services[0].name,
        sm_percent=row.sm_percent,
        batch=row.batch,
        arrival_rate_rps=1.0,
    )
    plan = Plan(
        policy="p",
        gpus=(
            GpuPlan(
                gpu_type=gpu_type.name, clock_mhz=row.clock_mhz, replicas=(replica,)
            ),
        ),
    )
    kw = (gpu_type.idle_w + row.power_w) / 1000.0
    assert cost_usd_per_hour(problem, plan) == pytest.approx(
        gpu_type.price_usd_per_hour + 0.12 * kw
    )


def a_policy(**spec: object) -> manifests.PolicyManifest:
    return manifests.PolicyManifest.model_validate(
        {"kind": "Policy", "metadata": {"name": "default"}, "spec": spec}
    )


def test_a_manifest_states_one_figure_or_a_day() -> None:
    assert to_settings(a_policy(carbon_g_per_kwh=400)).carbon_g_per_kwh == (400.0,)
    assert (
        to_settings(a_policy(carbon_g_per_kwh=list(BY_HOUR))).carbon_g_per_kwh
        == BY_HOUR
    )
    assert (
        to_settings(a_policy(carbon_price_usd_per_t=80)).carbon_price_usd_per_t == 80.0
    )
    assert to_settings(a_policy()).carbon_g_per_kwh == ()


@pytest.mark.parametrize("series", [[1.0] * 2, [1.0] * 25, [-1.0], "much"])
def test_other_series_are_refused(series: object) -> None:
    with pytest.raises(ValidationError, match="carbon_g_per_kwh"):
        a_policy(carbon_g_per_kwh=series)


def test_the_remedy_is_named() -> None:
    with pytest.raises(
        ValidationError,
        match="must have 1 figure or 24, one per hour of the day, not 2",
    ):
        a_policy(carbon_g_per_kwh=[1.0, 2.0])
