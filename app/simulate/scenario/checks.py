"""What a scenario's fields say together: every complaint with the path of the field that is to be changed."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from agents.sim.spec import BUSIEST
from app.base.errors import no_such
from app.manifests.policies import PolicyManifestSpec
from solvers.policies.registry import parameters_of, policies
from solvers.types.errors import InvalidInput, UnknownPolicy

# Fields of pydantic models are checked here by functions, which the models' own module calls.
if TYPE_CHECKING:
    from app.simulate.scenario.parts import (
        NodePool,
        ScenarioFields,
        SimulatedService,
        SimulatedTask,
        TaskList,
    )

MAX_RUNS = 1000
"""Policies times seeds."""

Path: TypeAlias = tuple[str | int, ...]
Complaint: TypeAlias = tuple[Path, str]
"""Path of the field below `spec`, and what is wrong with it."""


def complaints(spec: "ScenarioFields") -> Iterator[Complaint]:
    """All that does not fit together."""
    # All of them at once: a scenario should not have to be corrected field by field.
    yield from _times(spec)
    yield from _names(spec)
    yield from _policies(spec)
    yield from _idle_modes(spec)
    yield from _models(spec)
    yield from _gpu_choices(spec)
    yield from _tasks(spec)
    yield from _faults(spec)
    yield from _moments(spec)


def _times(spec: "ScenarioFields") -> Iterator[Complaint]:
    counted_s = spec.duration_s - spec.warm_up_s
    if counted_s <= 0.0:
        size = "longer than the" if counted_s < 0.0 else "the whole"
        problem = f"{spec.warm_up_s:g} s are {size} run of {spec.duration_s:g} s, so that nothing would count"
        yield ("warm_up_s",), problem
    # Means over steps of different length could not be compared.
    elif counted_s < spec.step_s or not _is_multiple(counted_s, spec.step_s):
        yield (
            ("duration_s",),
            f"less warm_up_s it is {counted_s:g} s, which must be a multiple of step_s, {spec.step_s:g} s",
        )
    # Energy is read with the agents' reports: a step that ends between two of them would lack a part of it.
    for name, value in (("step_s", spec.step_s), ("warm_up_s", spec.warm_up_s)):
        if not _is_multiple(value, spec.agent_period_s):
            yield (
                (name,),
                f"must be a multiple of agent_period_s, {spec.agent_period_s:g} s, after which GPUs are read, "
                f"not {value:g}",
            )


def _names(spec: "ScenarioFields") -> Iterator[Complaint]:
    yield from _repeats(
        "seeds", spec.seeds, "a run that is done twice would look like certainty"
    )
    yield from _repeated_names("services", spec.services, "services")
    yield from _repeated_names("fleet", spec.fleet, "pools")
    # By label, since the same policy may run several times with other settings.
    yield from _repeats(
        "policies",
        (each.label for each in spec.policies),
        "give one of them a name of its own",
    )


def _policies(spec: "ScenarioFields") -> Iterator[Complaint]:
    if (runs := len(spec.policies) * len(spec.seeds)) > MAX_RUNS:
        yield (
            ("seeds",),
            f"times the policies they are {runs} runs; at most {MAX_RUNS} are allowed",
        )
    if spec.loop.policy != PolicyManifestSpec().policy:
        yield ("loop", "policy"), "is not for here: `policies` says which ones decide"
    # A client's next request depends on the answers, so its rate is not known before the run.
    waiting = [each.name for each in spec.services if each.load.clients is not None]
    for place, run in enumerate(spec.policies):
        if run.policy not in policies():
            yield (
                ("policies", place, "policy"),
                no_such("policy", run.policy, policies()),
            )
        if run.clairvoyant and waiting:
            yield (
                ("policies", place, "clairvoyant"),
                f"no policy can know what the clients of {waiting[0]} will do; leave this policy out",
            )
        if run.foresight_s is not None and not run.clairvoyant:
            yield (
                ("policies", place, "foresight_s"),
                "is for clairvoyant policies; the others forecast",
            )


def _idle_modes(spec: "ScenarioFields") -> Iterator[Complaint]:
    """Who would decide nothing: there is no one here who could approve, or resume."""
    for place, run in enumerate(spec.policies):
        yield from _idle(
            run.settings.get("mode", "auto"),
            run.settings.get("paused"),
            "policies",
            place,
            "settings",
        )
    yield from _idle(spec.loop.mode, spec.loop.paused, "loop")
    for place, service in enumerate(spec.services):
        yield from _idle(service.mode, None, "services", place)


def _idle(mode: object, paused: object, *path: str | int) -> Iterator[Complaint]:
    if mode in ("off", "advise", "approve"):
        yield (
            (*path, "mode"),
            f"must be auto, not {mode}: no one here approves plans, so nothing would be decided",
        )
    if paused is True:
        yield (
            (*path, "paused"),
            "must be false: no one here resumes, so nothing would be decided",
        )


def group_complaints(
    spec: "ScenarioFields", loop: PolicyManifestSpec, *path: str | int
) -> Iterator[Complaint]:
    """Groups of services that do not fit this scenario; `path`: where their settings are."""
    for place, group in enumerate(loop.groups):
        here = (*path, "groups", place)
        if group.policy not in policies():
            yield (*here, "policy"), no_such("policy", group.policy, policies())
        yield from _idle(group.mode, None, *here)
        labels = group.labels.items()
        if not any(
            (not group.projects or each.project in group.projects)
            and labels <= each.labels.items()
            for each in spec.services
        ):
            yield (
                here,
                f"no service is of the projects and has the labels of {group.name}",
            )


def parameter_complaints(
    loop: PolicyManifestSpec, *path: str | int
) -> Iterator[Complaint]:
    """Parameters that their policies do not have, or do not allow; `path`: where the settings are."""
    for policy, stated in loop.parameters.items():
        here = (*path, "parameters", policy)
        try:
            parameters_of(policy, stated)
        except UnknownPolicy as error:
            yield here, str(error)
        except InvalidInput as error:
            yield (*here, error.field), error.problem


def _models(spec: "ScenarioFields") -> Iterator[Complaint]:
    for place, service in enumerate(spec.services):
        if service.kind != "llm":
            continue
        if service.load.clients is not None:
            yield (
                ("services", place, "load", "clients"),
                "are for services of kind inference: give rate_rps, a trace or levels",
            )


def _gpu_choices(spec: "ScenarioFields") -> Iterator[Complaint]:
    """Services to which their teams leave no GPU of the fleet."""
    types = {pool.gpu_type for pool in spec.fleet}
    for place, service in enumerate(spec.services):
        choice = service.gpu_types
        allowed = (
            types if choice.allowed is None else types.intersection(choice.allowed)
        )
        if not allowed - set(choice.excluded):
            # The field that takes the last type away is the one to change.
            field = "excluded" if allowed else "allowed"
            there = ", ".join(sorted(types))
            yield (
                ("services", place, "gpu_types", field),
                f"leaves {service.name} no GPU; the fleet has {there}",
            )


def _tasks(spec: "ScenarioFields") -> Iterator[Complaint]:
    yield from _repeated_names("tasks", spec.tasks, "tasks")
    yield from _repeated_names("task_lists", spec.task_lists, "lists")
    lists = {each.name for each in spec.task_lists}
    for place, task in enumerate(spec.tasks):
        # How many tasks a list makes is known only once its file is read.
        stem, _, number = task.name.rpartition("-")
        if stem in lists and number.isdigit():
            yield (
                ("tasks", place, "name"),
                f"{task.name!r} may be the name of a task of the list {stem}",
            )
    types = {pool.gpu_type for pool in spec.fleet}
    for place, entry in enumerate(spec.task_lists):
        if entry.gpu_type is not None and entry.gpu_type not in types:
            yield (
                ("task_lists", place, "gpu_type"),
                no_such("GPU type of the fleet", entry.gpu_type, sorted(types)),
            )


def _faults(spec: "ScenarioFields") -> Iterator[Complaint]:
    nodes = {
        f"{pool.name}-{number}": pool
        for pool in spec.fleet
        for number in range(1, pool.nodes + 1)
    }
    for place, fault in enumerate(spec.faults):
        if fault.node == BUSIEST:
            continue
        pool = nodes.get(fault.node)
        if pool is None:
            yield (
                ("faults", place, "node"),
                no_such("node", fault.node, [*nodes, BUSIEST]),
            )
        elif fault.gpu is not None and fault.gpu >= pool.gpus_per_node:
            yield (
                ("faults", place, "gpu"),
                f"{fault.node} has {pool.gpus_per_node}, counted from 0; there is no GPU {fault.gpu}",
            )


def _moments(spec: "ScenarioFields") -> Iterator[Complaint]:
    """What would begin when all is over."""
    for path, what, start_s in _beginnings(spec):
        if start_s >= spec.duration_s:
            yield (
                path,
                f"{what} would begin at {start_s:g} s, but the run is over at {spec.duration_s:g} s",
            )


def _beginnings(spec: "ScenarioFields") -> Iterator[tuple[Path, str, float]]:
    for place, fault in enumerate(spec.faults):
        yield (
            ("faults", place, "start_s"),
            f"{fault.kind} on {fault.node}",
            fault.start_s,
        )
    for place, service in enumerate(spec.services):
        load: Path = ("services", place, "load")
        for number, spike in enumerate(service.load.spikes):
            path = (*load, "spikes", number, "start_s")
            yield path, f"a spike of {service.name}", spike.start_s
        for number, step in enumerate(service.load.clients or ()):
            path = (*load, "clients", number, "start_s")
            yield path, f"a number of clients of {service.name}", step.start_s

    for place, task in enumerate(spec.tasks):
        yield ("tasks", place, "submit_s"), f"task {task.name}", task.submit_s
    for place, entry in enumerate(spec.task_lists):
        yield ("task_lists", place, "start_s"), f"the list {entry.name}", entry.start_s


def _repeated_names(
    field: str,
    entries: "Sequence[SimulatedService | NodePool | SimulatedTask | TaskList]",
    plural: str,
) -> Iterator[Complaint]:
    names = (each.name for each in entries)
    return _repeats(field, names, f"{plural} need names of their own", "name")


def _repeats(
    field: str, names: Iterable[str | int], remedy: str, *inside: str
) -> Iterator[Complaint]:
    """Complaints about every name that came before."""
    known: Counter[str | int] = Counter()
    for place, name in enumerate(names):
        if known[name]:
            yield (field, place, *inside), f"{name!r} is there twice; {remedy}"
        known[name] += 1


def _is_multiple(value: float, unit: float) -> bool:
    # 0.3 is three times 0.1, though not in binary fractions.
    return math.isclose(value / unit, round(value / unit), abs_tol=1e-9)
