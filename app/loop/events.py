"""Report: the audit's lines about what the loop did, in words that an operator can act on."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.loop.observe import FLAPS, HoldKind
from app.store.launch_book import FAILURES, AvoidedGpu
from app.store.store import AuditEvent, Snapshot
from app.store.task_book import TaskRecord, waited_s
from solvers.types.outcome import Reason
from solvers.types.plan import BoundPlan, Plan, anonymous, diff

ACTOR = "controller"


def _loop_event(
    at: datetime, kind: str, subject: str, reason: str, *, plan_id: int | None = None
) -> AuditEvent:
    return AuditEvent(
        at=at, actor=ACTOR, kind=kind, subject=subject, reason=reason, plan_id=plan_id
    )


def led_event(at: datetime, fault: str) -> AuditEvent:
    """A controller began to decide; `fault`: why it could not before, empty where it did not try."""
    reason = "this controller now leads; no other can push a plan"
    if fault:
        reason += f"; the previous leader's tick failed: {fault}"
    return _loop_event(at, "LeadTaken", "loop", reason)


def held_event(at: datetime, reason: Reason) -> AuditEvent:
    """The loop decided nothing."""
    return _loop_event(at, "LoopHeld", "loop", describe_hold(reason))


def describe_hold(reason: Reason) -> str:
    """Why the loop decides nothing, for the audit, logs and traces."""
    return _HELD[HoldKind(reason.kind)].format_map(reason.figures)


_HELD: Mapping[HoldKind, str] = {
    HoldKind.PAUSED: "an operator paused the loop; `plimsoll resume` continues it",
    HoldKind.MODE_OFF: "policy {policy} is in mode off",
    HoldKind.NO_GPUS: "no GPU is registered: start an agent or apply a Node",
    HoldKind.TELEMETRY_STALE: "telemetry is stale: no node reported for {silent_s:.0f} s "
    "(limit {limit_s:.0f} s); the current plan stays",
    HoldKind.TELEMETRY_RETURNS: "telemetry is returning: {silent} of {nodes} nodes have not reported yet and have "
    "{left_s:.0f} s left; the current plan stays",
}


def refused_event(at: datetime, plan_id: int, reason: str) -> AuditEvent:
    """The checker refused a plan."""
    return _loop_event(at, "PlanRefused", f"plan/{plan_id}", reason, plan_id=plan_id)


def silence_events(
    at: datetime,
    *,
    before: Sequence[str],
    after: Sequence[str],
    flapping: Collection[str] = (),
) -> tuple[AuditEvent, ...]:
    """One line per node that fell silent or was heard again. `flapping`: those that come and go."""
    silent = (
        "its agent has been silent for longer than the limit; plans leave its GPUs out"
    )
    again = (
        f"{silent}. It fell silent {FLAPS} times within an hour: once it reports again, its replicas stay, but "
        "nothing new starts there until the hour is over, unless GPUs are short without it"
    )
    return (
        *(
            _loop_event(
                at,
                "NodeSilent",
                f"node/{node}",
                again if node in flapping else silent,
            )
            for node in after
            if node not in before
        ),
        *(
            _loop_event(at, "NodeHeard", f"node/{node}", "its agent is reporting again")
            for node in before
            if node not in after
        ),
    )


def drained_events(at: datetime, nodes: Sequence[str]) -> Mapping[str, AuditEvent]:
    """One line per node from which the last replica and task have gone, by node."""
    reason = (
        "nothing is planned there any more, and its agent follows; it can be removed"
    )
    # By node: the store writes only those that it has not noted.
    return {
        node: _loop_event(at, "NodeDrained", f"node/{node}", reason) for node in nodes
    }


def launches_fail_event(at: datetime, avoided: AvoidedGpu) -> AuditEvent:
    """Launches of a service or task failed again and again on a GPU."""
    # A task's id is its name, with a dot and a number behind it where the name was used before.
    task = avoided.service.partition(".")[0] if "/" in avoided.service else ""
    subject = task or f"service/{avoided.service}"
    return _loop_event(at, "LaunchesFail", subject, describe_avoided(avoided))


def describe_avoided(avoided: AvoidedGpu) -> str:
    """Where a service's replicas, or a task, do not start for a while, and why, for people."""
    start = "it starts" if "/" in avoided.service else "its replicas start"
    return (
        f"{FAILURES} launches in a row failed on GPU {avoided.gpu}: {avoided.detail}; "
        f"until {avoided.until:%Y-%m-%d %H:%M:%S} UTC {start} on other GPUs where these have room"
    )


def repartition_events(
    at: datetime, *, before: Sequence[str], after: Sequence[str]
) -> tuple[AuditEvent, ...]:
    """One line per GPU whose governor has come to ask for other SM percents."""
    reason = (
        "for three seconds no clock and batch within the plan met both the power cap and the latencies; "
        "policy morak gives its services more SMs with the next plan"
    )
    return tuple(
        _loop_event(at, "RepartitionAsked", f"gpu/{gpu}", reason)
        for gpu in after
        if gpu not in before
    )


def pushed_event(snapshot: Snapshot, bound: BoundPlan, plan_id: int) -> AuditEvent:
    """A plan became the target; says what changes in replicas per service."""
    return AuditEvent(
        at=snapshot.at,
        actor=ACTOR,
        kind="PlanPushed",
        subject=f"plan/{plan_id}",
        reason=describe_change(snapshot.target, bound),
        plan_id=plan_id,
        before=None
        if snapshot.target is None
        else {"generation": snapshot.target.generation},
        after={"generation": bound.generation, "gpus": len(bound.gpus)},
    )


def describe_change(before: BoundPlan | None, after: BoundPlan) -> str:
    """What changes between two plans, e.g. `chat: +2 on T4, -1 on V100; photo: other SM percent, batch or clock`."""
    old = Plan(policy="none") if before is None else anonymous(before)
    phrases = list(_replica_changes(old, anonymous(after))) or _moves(before, after)
    if (before.governor if before else None) != after.governor:
        phrases.append(f"governor {after.governor or 'none'}")
    phrases.extend(_task_changes(before, after))
    if not phrases and before is None:
        return "no replicas: no service needs one"
    if not phrases and before is not None and before.gpus == after.gpus:
        return "the same replicas; nodes are told what changed of services"
    return "; ".join(phrases) or "only routing weights change"


def _replica_changes(old: Plan, new: Plan) -> Iterator[str]:
    """What changes per service; services whose counts stay the same share one phrase, the last."""
    moves: Counter[tuple[str, str]] = Counter()
    reshaped: set[str] = set()
    for change in diff(old, new):
        moves[(change.service, change.gpu_type)] += change.after - change.before
        reshaped.add(change.service)
    same_counts = []
    for service in sorted(reshaped):
        counts = [
            f"{count:+d} on {kind}"
            for (name, kind), count in sorted(moves.items())
            # Replicas that change only SM percent, batch or clock leave one group and join another: they cancel out.
            if name == service and count
        ]
        if counts:
            yield f"{service}: {', '.join(counts)}"
        else:
            same_counts.append(service)
    if same_counts:
        yield f"{', '.join(same_counts)}: other SM percent, batch or clock"


def _moves(before: BoundPlan | None, after: BoundPlan) -> list[str]:
    """The services whose replicas go to other GPUs of the same types, as from a node that drains."""
    old, new = _places(before), _places(after)
    moved = [service for service in sorted(new) if old.get(service) != new[service]]
    return [f"{', '.join(moved)}: on other GPUs"] if moved else []


def _places(plan: BoundPlan | None) -> dict[str, list[str]]:
    """The GPUs of each service's replicas, sorted."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for gpu in sorted(plan.gpus if plan else (), key=lambda gpu: gpu.id):
        for replica in gpu.replicas:
            places[replica.service].append(gpu.id)
    return dict(places)


def _task_changes(before: BoundPlan | None, after: BoundPlan) -> Iterator[str]:
    """Where tasks go, e.g. `task nightly: on n1/gpu-0`, `task nightly: swapped out`."""
    old = _task_places(before)
    new = _task_places(after)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"task {name}: {new.get(name, 'stops')}"


def _task_places(plan: BoundPlan | None) -> dict[str, str]:
    return {
        task.name: f"on {gpu.id}" if task.is_resident else "swapped out"
        for gpu in (plan.gpus if plan else ())
        for task in gpu.tasks
    }


STARVED_AFTER_S = 900.0
"""A task that has not run for so long is told: for 600 s it waits by design before an idle GPU is paid for it."""

LOOK_PERIOD_S = 30.0
"""So often the leader looks who waits for long."""


def progress_event(
    name: str, before: TaskRecord, after: TaskRecord, *, node: str, at: datetime
) -> AuditEvent | None:
    """What a node's report changed about a task; None where it only came on. `name`: as its team calls it."""
    found = _change(before, after)
    if found is None:
        return None
    kind, reason = found
    return AuditEvent(
        at=at, actor=f"node/{node}", kind=kind, subject=f"task/{name}", reason=reason
    )


def _change(before: TaskRecord, after: TaskRecord) -> tuple[str, str] | None:
    # Mere progress is no event: a line per report would flood the audit.
    if before.phase == after.phase:
        return None
    done = f"{after.done_iterations:,.0f} of {after.task.iterations:,} iterations"
    match after.phase:
        case "finished":
            return "TaskFinished", _ending(after)
        case "running" if before.phase == "swapped":
            return "TaskSwappedIn", f"{_place(after)}, after {done}"
        case "running":
            return "TaskStarted", f"{_place(after)}, after {done}"
        case "swapped":
            return (
                "TaskSwappedOut",
                f"its room on {_gpu(after)} is needed; {done} are done",
            )
        case "failed":
            return (
                "TaskFailed",
                f"on {_gpu(after)}, after {done}; its agent starts it again",
            )
        case _:
            return None


def _ending(record: TaskRecord) -> str:
    assert record.finished_at is not None
    took_s = (record.finished_at - record.submitted_at).total_seconds()
    duration = f"{record.task.iterations:,} iterations in {took_s:,.0f} s, of which it waited {_waited(record):,.0f} s"
    if record.deadline_at is None:
        return duration
    late_s = (record.finished_at - record.deadline_at).total_seconds()
    return f"{duration}; {abs(late_s):,.0f} s {'after' if late_s > 0.0 else 'before'} its deadline"


def _waited(record: TaskRecord) -> float:
    assert record.finished_at is not None
    return waited_s(record, record.finished_at)


def _place(record: TaskRecord) -> str:
    percent = f" with {record.place[1]:g} % of its SMs" if record.place else ""
    return f"on {_gpu(record)}{percent}"


def _gpu(record: TaskRecord) -> str:
    return record.place[0] if record.place else "a GPU where it is no longer planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Starved:
    """A task that has not run for STARVED_AFTER_S or longer."""

    name: str
    network: str
    batch: int
    waiting_s: float
    has_points: bool
    """Whether its network has operating points with its batch on a GPU type that is there."""


def starved_event(task: Starved, at: datetime) -> AuditEvent:
    """A task waits for long, and why."""
    why = "services leave no room for it; more GPUs, a higher priority or a smaller batch would help"
    if not task.has_points:
        why = (
            f"{task.network} has no operating points with batch {task.batch} on the available GPU types; "
            "send a profile, or add nodes of another type"
        )
    reason = f"it has not run for {task.waiting_s:,.0f} s: {why}"
    return _loop_event(at, "TaskStarved", f"task/{task.name}", reason)


def refused_events(
    refused: Iterable[tuple[str, str]], at: datetime
) -> tuple[AuditEvent, ...]:
    """The checker left tasks out of a plan: (id, rule with its detail) of each."""
    return tuple(
        _loop_event(
            at,
            "TaskRefused",
            # A task's id is its name, with a dot and a number behind it where the name was used before.
            f"task/{task.partition('.')[0]}",
            f"the checker removed it from the plan: {detail}",
        )
        for task, detail in sorted(refused)
    )
