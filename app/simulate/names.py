"""Names in a scenario that the shipped catalogue must know, each with the path of the field below `spec`."""

from collections.abc import Iterator

from app.catalogue import list_networks, load_gpu_types, load_profiles, not_for_services
from app.errors import no_such
from app.simulate.scenario import Scenario, ScenarioSpec
from app.simulate.scenario_checks import Complaint
from app.simulate.tasks import works_of


def unknown_names(scenario: Scenario) -> Iterator[Complaint]:
    """Networks and GPU types that the catalogue has not, or not for that; else batches of tasks that it has not."""
    spec = scenario.spec
    found = [*_gpu_types(spec), *_networks(spec), *_works(spec)]
    yield from found or _batches(spec)


def _gpu_types(spec: ScenarioSpec) -> Iterator[Complaint]:
    known = [each.name for each in load_gpu_types()]
    for place, pool in enumerate(spec.fleet):
        if pool.gpu_type not in known:
            yield ("fleet", place, "gpu_type"), no_such("GPU type", pool.gpu_type, known)
    for place, service in enumerate(spec.services):
        for field, names in (("allowed", service.gpu_types.allowed or ()), ("excluded", service.gpu_types.excluded)):
            for number, name in enumerate(names):
                if name not in known:
                    yield ("services", place, "gpu_types", field, number), no_such("GPU type", name, known)


def _networks(spec: ScenarioSpec) -> Iterator[Complaint]:
    known, training = list_networks("inference"), list_networks("training")
    for place, service in enumerate(spec.services):
        named: dict[tuple[str | int, ...], str] = {("network",): service.network}
        named |= {("variants", number, "network"): each.network for number, each in enumerate(service.variants)}
        for path, network in named.items():
            if network in training:
                yield ("services", place, *path), not_for_services(network)
            elif network not in known:
                yield ("services", place, *path), no_such("network", network, known)


def _works(spec: ScenarioSpec) -> Iterator[Complaint]:
    """Of tasks."""
    known = {"training": list_networks("training"), "offline": list_networks("inference")}
    for path, work, kind in works_of(spec):
        other = "offline" if kind == "training" else "training"
        if work.network in known[other]:
            yield (*path, "network"), f"{work.network} is for tasks of kind {other}; this one's is {kind}"
        elif work.network not in known[kind]:
            yield (*path, "network"), no_such(f"network for {kind} tasks", work.network, known[kind])


def _batches(spec: ScenarioSpec) -> Iterator[Complaint]:
    gpu_types = {pool.gpu_type for pool in spec.fleet}
    points = load_profiles({work.network for _, work, _ in works_of(spec)}, gpu_types)
    for path, work, _ in works_of(spec):
        batches = sorted({row.batch for entry in points if entry.network == work.network for row in entry.rows})
        if work.batch not in batches:
            known = ", ".join(map(str, batches))
            yield (*path, "batch"), f"{work.network} was profiled with batches {known}, not {work.batch}"
