"""Conditions of a service, from a snapshot alone, and of a node."""

from dataclasses import replace

import numpy as np
import pytest

from app.answers.conditions import Condition
from app.answers.status import node_applied, service_statuses, while_compiling
from app.store.node_book import AgentStatus
from app.store.store import Correction, Proposal, Snapshot
from solvers.predict.data.samples import Group
from solvers.predict.learn.online import FitState, new_fit_state
from solvers.types.plan import BoundPlan, Unserved
from solvers.types.state import Demand, Mode, Slo
from tests.app.fleets import a_service
from tests.app.snapshots import (
    NOW,
    a_bound_plan,
    a_replica,
    a_snapshot,
    a_state,
    windows_of,
)

HEARD = windows_of("chat", [40] * 5)
TARGET = a_bound_plan([a_replica("r1")], [a_replica("r2")], generation=3)


def _conditions(snapshot: Snapshot) -> dict[str, Condition]:
    conditions = service_statuses(snapshot, ["chat"])["chat"].conditions
    assert [condition.type for condition in conditions] == [
        "Ready",
        "TelemetryAvailable",
        "Feasible",
        "Applied",
        "PredictionsHold",
        "SLOMet",
    ]
    return {condition.type: condition for condition in conditions}


def _with_agents(snapshot: Snapshot, **generations: int) -> Snapshot:
    statuses = [
        AgentStatus(node=node, generation=number)
        for node, number in generations.items()
    ]
    return replace(snapshot, statuses=tuple(statuses))


def _said(snapshot: Snapshot, kind: str) -> tuple[str, str]:
    condition = _conditions(snapshot)[kind]
    return condition.status, condition.reason


def _with_learned(snapshot: Snapshot, health: FitState) -> Snapshot:
    return replace(
        snapshot,
        corrections=(Correction(group=Group("net", "fast"), health=health, at=NOW),),
    )


SERVED = replace(new_fit_state(np.zeros(2), 0.0), readings=5)


def test_a_served_service_has_nothing_but_true() -> None:
    snapshot = _with_agents(
        _with_learned(a_snapshot(windows=HEARD, target=TARGET), SERVED), n1=3, n2=3
    )
    assert {condition.status for condition in _conditions(snapshot).values()} == {
        "True"
    }
    status = service_statuses(snapshot, ["chat", "nobody"])["chat"]
    assert status.replicas == (("fast", 2),)
    assert status.planned_rate_rps == 40.0


def test_whether_predictions_hold_is_said_with_how_far_they_are_off() -> None:
    snapshot = a_snapshot(windows=HEARD, target=TARGET)
    assert _said(snapshot, "PredictionsHold") == ("Unknown", "NotServedYet")
    drifted = _with_learned(snapshot, replace(SERVED, alarm_since_s=9.0, error=0.262))
    assert _said(drifted, "PredictionsHold") == ("False", "FitDrifted")
    assert "fast: 26 % off" in _conditions(drifted)["PredictionsHold"].message


def test_without_a_plan_little_is_known() -> None:
    assert _said(a_snapshot(windows=HEARD), "Ready") == ("Unknown", "NotPlanned")
    assert _said(a_snapshot(windows=HEARD), "Applied") == ("Unknown", "NoTarget")


def test_what_is_not_planned_while_the_solver_compiles_says_so() -> None:
    plain = service_statuses(a_snapshot(windows=HEARD), ["chat"])
    for before, now in zip(
        plain["chat"].conditions,
        while_compiling(plain)["chat"].conditions,
        strict=True,
    ):
        is_waiting = before.reason == "NotPlanned"
        more = "; compiling kernels (a minute, once)" if is_waiting else ""
        assert now == replace(before, message=before.message + more)


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ((), ("False", "MetricsMissing")),
        (windows_of("chat", [40], last_ended_s=16.0), ("False", "MetricsStale")),
        (windows_of("chat", [0]), ("True", "MetricsFound")),
    ],
)
def test_missing_stale_and_quiet_telemetry_differ(
    windows: object, said: tuple[str, str]
) -> None:
    assert _said(a_snapshot(windows=windows), "TelemetryAvailable") == said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("stock", "NoGpuLeft"),
        ("replicas", "ReplicaLimitReached"),
        ("power", "PowerCapReached"),
    ],
)
def test_what_a_plan_leaves_out_names_the_rule_that_binds(
    reason: str, said: str
) -> None:
    short = replace(
        TARGET, unserved=(Unserved(service="chat", rate_rps=7.0, reason=reason),)
    )  # type: ignore[arg-type]
    snapshot = _with_agents(a_snapshot(windows=HEARD, target=short), n1=3, n2=3)
    assert _said(snapshot, "Feasible") == ("False", said)
    assert _said(snapshot, "Ready") == ("False", said)
    assert "7.0 requests per second" in _conditions(snapshot)["Feasible"].message


def test_an_slo_that_no_point_keeps_is_told_even_without_a_plan() -> None:
    hasty = replace(a_service(), slo=Slo(latency_ms=4.0, percentile=0.98))
    snapshot = a_snapshot(state=a_state(services=(hasty,)), windows=HEARD)
    assert _said(snapshot, "Feasible") == ("False", "SloOutOfReach")


def test_nodes_that_are_behind_are_named_and_others_do_not_count() -> None:
    only_n2 = a_bound_plan([], [a_replica("r2")], generation=3)
    snapshot = _with_agents(a_snapshot(windows=HEARD, target=only_n2), n1=1, n2=2)
    assert _said(snapshot, "Applied") == ("False", "RollingOut")
    assert _conditions(snapshot)["Applied"].message.endswith("not yet on n2")
    assert _said(_with_agents(snapshot, n1=1, n2=3), "Applied") == (
        "True",
        "NodesFollow",
    )


@pytest.mark.parametrize(
    ("in_slo", "said"),
    [
        (40, ("True", "AttainmentKept")),
        (39, ("False", "AttainmentMissed")),
        (None, ("Unknown", "NoTraffic")),
    ],
)
def test_the_slo_is_judged_by_the_last_minute(
    in_slo: int | None, said: tuple[str, str]
) -> None:
    windows = (
        windows_of("chat", [0])
        if in_slo is None
        else windows_of("chat", [40], in_slo=in_slo)
    )
    assert _said(a_snapshot(windows=windows), "SLOMet") == said


def _told(snapshot: Snapshot, **newest_rates_rps: float) -> dict[str, tuple[str, str]]:
    demands = {
        name: Demand(service=name, arrival_rate_rps=rate_rps)
        for name, rate_rps in newest_rates_rps.items()
    }
    statuses = service_statuses(snapshot, ["chat"], demands)
    return {
        each.type: (each.status, each.reason) for each in statuses["chat"].conditions
    }


def a_proposal(bound: BoundPlan) -> Proposal:
    return Proposal(
        plan_id=12, bound=bound, at=NOW, catalogue_revision=1, policy_version=1
    )


def _asking(snapshot: Snapshot) -> Snapshot:
    """The same where a person approves each plan."""
    settings = replace(snapshot.settings, mode=Mode.APPROVE)
    return replace(snapshot, settings=settings)


def test_a_plan_that_is_about_to_be_pushed_waits_for_nobody() -> None:
    # Between the two steps of a tick that writes it down and then pushes it.
    snapshot = replace(
        a_snapshot(windows=HEARD),
        proposal=a_proposal(a_bound_plan([a_replica("r1")], generation=1)),
    )
    assert _said(snapshot, "Ready") == ("Unknown", "NotPlanned")
    assert _said(_asking(snapshot), "Ready") == ("False", "WaitsForApproval")


def test_a_new_service_waits_for_the_plan_that_has_it() -> None:
    search = [a_replica("r1", service="search")]
    others = a_bound_plan(search, generation=3)
    proposal = a_proposal(a_bound_plan(search, [a_replica("r2")], generation=4))
    for target in (None, others):
        snapshot = a_snapshot(windows=HEARD, target=target)
        told = _told(_asking(replace(snapshot, proposal=proposal)), chat=20.0)
        assert told["Ready"] == told["Applied"] == ("False", "WaitsForApproval")
        assert told["Feasible"] == ("Unknown", "WaitsForApproval")
    # Once somebody said no to it, the load is there all the same.
    rejected = a_snapshot(windows=HEARD, target=others)
    assert _told(rejected, chat=20.0)["Ready"] == ("Unknown", "NotPlanned")


def test_a_service_that_nobody_has_looked_at_is_not_scaled_to_zero() -> None:
    others = a_bound_plan([a_replica("r1", service="search")], generation=3)
    unheard = a_snapshot(target=others)
    assert _told(unheard)["Ready"] == ("Unknown", "NotPlanned")
    assert _told(unheard, chat=0.0)["Ready"] == ("True", "ScaledToZero")
    # Requests come, whatever was expected before the loop was paused.
    heard = a_snapshot(windows=HEARD, target=others)
    assert _told(heard, chat=0.0)["Ready"] == ("Unknown", "NotPlanned")


def test_replicas_that_must_stand_ready_are_missed_also_without_a_request() -> None:
    others = a_bound_plan([a_replica("r1", service="search")], generation=3)
    for service in (a_service(min_replicas=1), a_service(buffer_replicas=1)):
        state = a_state(services=(service,))
        snapshot = a_snapshot(state=state, target=others)
        assert _told(snapshot, chat=0.0)["Ready"] == ("Unknown", "NotPlanned")


def test_a_service_in_mode_off_is_in_no_plan() -> None:
    off = replace(a_service(), mode=Mode.OFF)
    snapshot = a_snapshot(state=a_state(services=(off,)), windows=HEARD, target=TARGET)
    assert _said(snapshot, "Feasible") == ("Unknown", "ModeOff")


def test_a_node_says_in_its_agents_words_what_it_refuses_or_cannot_carry_out() -> None:
    words = "there is no GPU 0; this node has [1]"
    refused = node_applied(
        held=10, wanted=11, is_renumbered=False, said="refused", detail=words
    )
    assert (refused.status, refused.reason) == ("False", "CommandRefused")
    assert refused.message == f"generation 11 is refused: {words}"
    failed = node_applied(
        held=11, wanted=11, is_renumbered=False, said="failed", detail=words
    )
    assert (failed.status, failed.reason) == ("False", "CarriedOutInPart")
    assert failed.message.endswith(f"not all of it is carried out: {words}")
    for said in ("applied", "applying", ""):
        followed = node_applied(held=11, wanted=11, is_renumbered=False, said=said)
        assert followed.status == "True"


@pytest.mark.parametrize(
    ("held", "wanted", "is_renumbered", "status", "reason"),
    [
        (0, 0, False, "Unknown", "NoTarget"),
        (3, 3, False, "True", "NodesFollow"),
        (2, 3, False, "False", "RollingOut"),
        (4, 3, False, "False", "NodesAhead"),
        (4, 3, True, "False", "NodesAhead"),
        (3, 3, True, "False", "Renumbered"),
    ],
)
def test_a_node_says_whether_it_follows_its_newest_command(
    held: int, wanted: int, is_renumbered: bool, status: str, reason: str
) -> None:
    said = node_applied(held=held, wanted=wanted, is_renumbered=is_renumbered)
    assert (said.type, said.status, said.reason) == ("Applied", status, reason)
