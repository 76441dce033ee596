"""Report: the audit's lines about what the loop did, in words that an operator can act on."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from app.control.store import Event, Snapshot
from solvers.plan import BoundPlan, anonymous, diff

ACTOR = "controller"


def held_event(at: datetime, reason: str) -> Event:
    """The loop decided nothing."""
    return Event(at=at, actor=ACTOR, kind="LoopHeld", subject="loop", reason=reason)


def refused_event(at: datetime, plan_id: int, reason: str) -> Event:
    """The checker refused a plan."""
    return Event(at=at, actor=ACTOR, kind="PlanRefused", subject=f"plan/{plan_id}", reason=reason, plan_id=plan_id)


def silence_events(at: datetime, *, before: Sequence[str], after: Sequence[str]) -> tuple[Event, ...]:
    """One line per node that fell silent or was heard again."""
    lost = [
        Event(
            at=at,
            actor=ACTOR,
            kind="NodeSilent",
            subject=f"node/{node}",
            reason="its agent is silent for longer than the limit; its GPUs are planned without",
        )
        for node in after
        if node not in before
    ]
    back = [
        Event(at=at, actor=ACTOR, kind="NodeHeard", subject=f"node/{node}", reason="its agent reports again")
        for node in before
        if node not in after
    ]
    return (*lost, *back)


def repartition_events(at: datetime, *, before: Sequence[str], after: Sequence[str]) -> tuple[Event, ...]:
    """One line per GPU whose governor has come to ask for other SM percents."""
    return tuple(
        Event(
            at=at,
            actor=ACTOR,
            kind="RepartitionAsked",
            subject=f"gpu/{gpu}",
            reason="for three seconds no clock and batch within the plan kept both the power cap and the latencies; "
            "policy morak gives its services more SMs with the next plan",
        )
        for gpu in after
        if gpu not in before
    )


def pushed_event(snapshot: Snapshot, bound: BoundPlan, plan_id: int) -> Event:
    """A plan became the target; says what changes in replicas per service."""
    return Event(
        at=snapshot.at,
        actor=ACTOR,
        kind="PlanPushed",
        subject=f"plan/{plan_id}",
        reason=describe_change(snapshot.target, bound),
        plan_id=plan_id,
        before=None if snapshot.target is None else {"generation": snapshot.target.generation},
        after={"generation": bound.generation, "gpus": len(bound.gpus)},
    )


def describe_change(before: BoundPlan | None, after: BoundPlan) -> str:
    """What changes between two plans, e.g. `chat: +2 on T4, -1 on V100; photo: other SM percent, batch or clock`."""
    old = anonymous(before) if before is not None else anonymous(BoundPlan(generation=0, parent=0, policy="none"))
    moves: Counter[tuple[str, str]] = Counter()
    reshaped: Counter[str] = Counter()
    for change in diff(old, anonymous(after)):
        moves[(change.service, change.gpu_type)] += change.after - change.before
        reshaped[change.service] += 1
    phrases, same_counts = [], []
    for service in sorted(reshaped):
        counts = [f"{count:+d} on {kind}" for (name, kind), count in sorted(moves.items()) if name == service and count]
        if counts:
            phrases.append(f"{service}: {', '.join(counts)}")
        else:
            same_counts.append(service)
    if same_counts:
        phrases.append(f"{', '.join(same_counts)}: other SM percent, batch or clock")
    if (before.governor if before else None) != after.governor:
        phrases.append(f"governor {after.governor or 'none'}")
    phrases.extend(_task_changes(before, after))
    if not phrases and before is None:
        return "no replicas: no service asks for one"
    return "; ".join(phrases) or "only routing weights change"


def _task_changes(before: BoundPlan | None, after: BoundPlan) -> Iterator[str]:
    """Where tasks go, e.g. `task nightly: on n1/gpu-0`, `task nightly: swapped out`."""
    old, new = _task_places(before), _task_places(after)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"task {name}: {new.get(name, 'stops')}"


def _task_places(plan: BoundPlan | None) -> dict[str, str]:
    return {
        task.name: f"on {gpu.id}" if task.is_resident else "swapped out"
        for gpu in (plan.gpus if plan else ())
        for task in gpu.tasks
    }
