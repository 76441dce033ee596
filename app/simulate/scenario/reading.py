"""From a document to a scenario, or to all that is wrong with it: the field, and what to write there instead."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agents.base.plurals import counted
from app.base.errors import no_such
from app.base.yaml_lines import FieldPath
from app.catalogue.catalogue import (
    list_networks,
    load_gpu_types,
    load_profiles,
    not_for_services,
)
from app.manifests.validation_hints import remedy
from app.simulate.scenario.checks import Complaint
from app.simulate.scenario.models import model_complaints
from app.simulate.scenario.parts import NodePool
from app.simulate.scenario.scenario import ScenarioSpec, SimulationScenario
from app.simulate.scenario.tasks import works_of

Complaints: TypeAlias = tuple[tuple[FieldPath, str], ...]
"""Path of each field that is wrong, from the document's top, and why."""


def scenario_of(
    value: object, check: Callable[[SimulationScenario], Iterator[Complaint]]
) -> SimulationScenario | Complaints:
    """The scenario that a document is. `check`: what else may be wrong with it, e.g. files that it names."""
    try:
        scenario = SimulationScenario.model_validate(value)
    except ValidationError as error:
        return tuple((entry["loc"], _remedy(entry)) for entry in error.errors())
    # Only of a scenario whose shape is right: names and files are looked up in the catalogue and on the disk.
    found = (*unknown_names(scenario), *check(scenario))
    return tuple((("spec", *path), problem) for path, problem in found) or scenario


def pool_of(value: object) -> NodePool | None:
    """The node pool that a part of a document is; None: it is none."""
    try:
        return NodePool.model_validate(value)
    except ValidationError:
        return None


def _remedy(error: ErrorDetails) -> str:
    if error["type"] in ("too_short", "too_long"):
        return _length(error)
    return remedy(SimulationScenario, error["loc"], error)


def _length(error: ErrorDetails) -> str:
    """How long a list, or an object whose names are the user's own (labels), must be."""
    lower, upper = (error["ctx"].get(name) for name in ("min_length", "max_length"))
    entries = (
        f"at most {upper:,} entries"
        if lower is None
        else f"at least {counted(lower, 'entry')}"
    )
    shape = "a list" if isinstance(error["input"], list) else "an object"
    return f"must be {shape} of {entries}, not of {len(error['input']):,}"


def unknown_names(scenario: SimulationScenario) -> Iterator[Complaint]:
    """Networks and GPU types that the catalogue has not, or not for that; else batches of tasks that it has not."""
    spec = scenario.spec
    # Batches are looked up last: a network that is not there has none.
    found = [*_gpu_types(spec), *_networks(spec), *_works(spec)]
    yield from found or (*model_complaints(spec), *_batches(spec))


def _gpu_types(spec: ScenarioSpec) -> Iterator[Complaint]:
    known = [each.name for each in load_gpu_types()]
    for place, pool in enumerate(spec.fleet):
        if pool.gpu_type not in known:
            yield (
                ("fleet", place, "gpu_type"),
                no_such("GPU type", pool.gpu_type, known),
            )
    # Of the catalogue, not of the fleet: a type that the fleet lacks may be excluded all the same.
    for place, service in enumerate(spec.services):
        choice = service.gpu_types
        named = {
            **{("allowed", each): n for each, n in enumerate(choice.allowed or ())},
            **{("excluded", each): n for each, n in enumerate(choice.excluded)},
        }
        for path, name in named.items():
            if name not in known:
                yield (
                    ("services", place, "gpu_types", *path),
                    no_such("GPU type", name, known),
                )


def _networks(spec: ScenarioSpec) -> Iterator[Complaint]:
    known = list_networks("inference")
    training = list_networks("training")
    for place, service in enumerate(spec.services):
        if service.kind == "llm":
            continue
        named: dict[tuple[str | int, ...], str] = {("network",): service.network}
        named |= {
            ("variants", number, "network"): each.network
            for number, each in enumerate(service.variants)
        }
        for path, network in named.items():
            # The more helpful message: the network is there, but serves no requests.
            if network in training:
                yield ("services", place, *path), not_for_services(network)
            elif network not in known:
                yield ("services", place, *path), no_such("network", network, known)


def _works(spec: ScenarioSpec) -> Iterator[Complaint]:
    """Complaints about what tasks run."""
    # An offline job runs a network as services do, but for throughput.
    known = {
        "training": list_networks("training"),
        "offline": list_networks("inference"),
    }
    for path, work, kind in works_of(spec):
        other = "offline" if kind == "training" else "training"
        if work.network in known[other]:
            yield (
                (*path, "network"),
                f"{work.network} is for tasks of kind {other}; this one's is {kind}",
            )
        elif work.network not in known[kind]:
            yield (
                (*path, "network"),
                no_such(f"network for {kind} tasks", work.network, known[kind]),
            )


def _batches(spec: ScenarioSpec) -> Iterator[Complaint]:
    gpu_types = {pool.gpu_type for pool in spec.fleet}
    points = load_profiles({work.network for _, work, _ in works_of(spec)}, gpu_types)
    for path, work, _ in works_of(spec):
        batches = sorted(
            {
                row.batch
                for entry in points
                if entry.network == work.network
                for row in entry.rows
            }
        )
        if work.batch not in batches:
            known = ", ".join(map(str, batches))
            yield (
                (*path, "batch"),
                f"{work.network} was profiled with batches {known}, not {work.batch}",
            )
