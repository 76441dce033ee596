"""Scenarios: what becomes of a Problem, what is refused, and which questions are asked unasked."""

import pytest

from app.answers.scenario import (
    WhatIfScenario,
    changed,
    describe_scenario,
    max_suggested,
    suggested,
)
from solvers.types.errors import InvalidInput
from solvers.types.outcome import Prices, ServicePrice
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan
from tests.solvers.instances import a_problem, a_service, a_type

TYPES = (a_type("T4", count=3), a_type("A100", price_usd_per_hour=4.0))
PROBLEM = a_problem(
    a_service(rate_rps=10.0), a_service("search", rate_rps=20.0), types=TYPES
)


def rates(scenario: WhatIfScenario) -> dict[str, float]:
    return {
        service.name: service.arrival_rate_rps
        for service in changed(PROBLEM, scenario).services
    }


def test_nothing_different_leaves_the_problem_as_it_is() -> None:
    assert changed(PROBLEM, WhatIfScenario()) == PROBLEM
    assert describe_scenario(WhatIfScenario()) == "nothing different"


def test_demand_is_multiplied_and_a_service_s_own_factor_goes_before_that_of_all() -> (
    None
):
    assert rates(WhatIfScenario(demand_factor={"all": 2.0})) == {
        "chat": 20.0,
        "search": 40.0,
    }
    assert rates(WhatIfScenario(demand_factor={"all": 2.0, "chat": 3.0})) == {
        "chat": 30.0,
        "search": 40.0,
    }
    assert rates(
        WhatIfScenario(demand_rps={"chat": 7.0}, demand_factor={"chat": 3.0})
    ) == {
        "chat": 21.0,
        "search": 20.0,
    }


def test_stock_prices_and_slos_change_where_asked_and_nowhere_else() -> None:
    scenario = WhatIfScenario(
        gpus={"T4": -2}, price_usd_per_hour={"A100": 2.5}, slo_ms={"chat": 80.0}
    )
    after = changed(PROBLEM, scenario)
    assert [(one.count, one.price_usd_per_hour) for one in after.gpu_types] == [
        (1, 1.0),
        (None, 2.5),
    ]
    assert [service.slo_ms for service in after.services] == [80.0, 100.0]
    assert describe_scenario(scenario) == "-2 T4, A100 at $2.5/h, SLO of chat 80 ms"


def test_services_come_go_and_take_the_place_of_others() -> None:
    new = a_service("new", rate_rps=5.0)
    louder = a_service("search", rate_rps=99.0)
    assert rates(WhatIfScenario(services=(new, louder), without=("chat",))) == {
        "search": 99.0,
        "new": 5.0,
    }
    # A new one's demand can be multiplied in the same breath.
    assert (
        rates(WhatIfScenario(services=(new,), demand_factor={"new": 2.0}))["new"]
        == 10.0
    )


@pytest.mark.parametrize(
    ("scenario", "field", "message"),
    [
        (
            WhatIfScenario(demand_factor={"chta": 2.0}),
            "demand_factor",
            "no service is called 'chta'; did you mean chat? There",
        ),
        (WhatIfScenario(demand_factor={"chat": -1.0}), "demand_factor", "-1 for"),
        (
            WhatIfScenario(demand_rps={"chat": float("nan")}),
            "demand_rps",
            "nan for chat must be a number 0 or more",
        ),
        (WhatIfScenario(slo_ms={"chat": 0.0}), "slo_ms", "0 for chat must be a number"),
        (WhatIfScenario(gpus={"t4": 1}), "gpus", "no GPU type is called 't4'; did you"),
        (WhatIfScenario(gpus={"T4": -4}), "gpus", "3 T4 can be planned with; -4 would"),
        (WhatIfScenario(gpus={"A100": 1}), "gpus", "the number of A100 is unlimited"),
        (
            WhatIfScenario(price_usd_per_hour={"T4": 0.0}),
            "price_usd_per_hour",
            "0 for T4 must be a number above 0",
        ),
        (WhatIfScenario(without=("photo",)), "without", "no service is called"),
        (
            WhatIfScenario(services=(a_service("new", network="nte"),)),
            "services[0].network",
            "no measured network is called 'nte'; did you mean net? There are net",
        ),
        (
            WhatIfScenario(services=(a_service("new", percentile=0.5),)),
            "services[0].percentile",
            "0.5 is not in the problem's capacity law; it has 0.95",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_field_and_what_there_is(
    scenario: WhatIfScenario, field: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        changed(PROBLEM, scenario, where="scenarios[3].")
    assert caught.value.field == f"scenarios[3].{field}"
    assert caught.value.problem.startswith(message)


def a_plan(*names: str) -> Plan:
    replicas = tuple(
        ReplicaPlan(service=name, sm_percent=25.0, batch=1, arrival_rate_rps=1.0)
        for name in names
    )
    return Plan(
        policy="test",
        gpus=(GpuPlan(gpu_type="T4", clock_mhz=1000.0, replicas=replicas),),
    )


def test_the_usual_questions_are_growth_stock_and_the_slos_of_the_dearest_services() -> (
    None
):
    prices = Prices(
        unit="usd_per_hour",
        services=(
            ServicePrice(service="chat", per_rps=1.0),
            ServicePrice(service="search", per_rps=0.1),
        ),
        gpu_types=(),
    )
    asked = [
        describe_scenario(scenario)
        for scenario in suggested(PROBLEM, a_plan("chat"), prices)
    ]
    assert asked == [
        "all demand × 1.2",
        "+1 T4",
        "-1 T4",
        "SLO of chat +10 % (110 ms)",
        "SLO of search +10 % (110 ms)",
    ]
    assert len(asked) <= max_suggested(PROBLEM)
