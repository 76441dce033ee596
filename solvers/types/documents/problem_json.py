"""Problem from and to the contract's JSON, versions 1 and 2: strict in, exact out."""

import itertools
import json
from collections.abc import Sequence
from typing import cast

from solvers.types.documents.gpu_type_json import (
    check_slice_points,
    gpu_type_document,
    read_gpu_type,
    read_rows,
    read_slice_points,
    slice_points_document,
)
from solvers.types.documents.llm_json import (
    check_llm_points,
    llm_points_document,
    llm_service_document,
    read_limits,
    read_llm_points,
    read_llm_service,
)
from solvers.types.documents.llm_laws_json import (
    check_step_laws,
    read_length_pairs,
    read_step_law,
)
from solvers.types.documents.plan_json import (
    plan_document,
    plan_from_document,
    read_version,
)
from solvers.types.documents.strict_json import (
    RESERVED,
    Fields,
    document_without,
    fields_document,
    parse_json,
    read_integer,
    read_items,
    read_number,
    read_text,
    refuse_repeats,
)
from solvers.types.errors import InvalidInput
from solvers.types.llm import LlmDemand
from solvers.types.plan import Plan
from solvers.types.problem import (
    CapacityLaw,
    Objective,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.slices import SlicePoints
from solvers.types.state import GpuType

LawTable = tuple[tuple[tuple[float, ...], ...], ...]
"""(P, B, R), as `CapacityLaw.max_utilisation`."""

_KINDS = ("inference", "llm")
MAX_PERCENTILE = 1 - 1e-12
"""Below 1, for no utilisation above 0 keeps the SLO for every single request."""


def problem_from_json(text: str | bytes) -> Problem:
    """The Problem that the JSON text states. Raises InvalidInput, which names the field and the remedy."""
    return problem_from_document(parse_json(text))


def problem_to_json(problem: Problem) -> str:
    """The contract's JSON text of a Problem; `problem_from_json` gives an equal Problem back."""
    return json.dumps(problem_document(problem), indent=1, allow_nan=False)


def problem_from_document(document: object) -> Problem:
    """The Problem that a parsed JSON document states. Raises InvalidInput."""
    fields = Fields(document, "", RESERVED)
    # Before anything else: a later version may give the other fields another meaning.
    version = read_version(fields)
    points = fields.each("points", _points)
    services = fields.each("services", _service)
    problem = Problem(
        objective=cast(
            Objective, fields.choice("objective", ("min_cost", "max_goodput"))
        ),
        energy_price_usd_per_kwh=_number_or_0(fields, "energy_price_usd_per_kwh"),
        max_replicas_per_gpu=fields.integer("max_replicas_per_gpu", at_least=1),
        capacity_law=fields.read("capacity_law", _capacity_law),
        gpu_types=fields.each("gpu_types", read_gpu_type, at_least=1),
        services=tuple(each for each in services if isinstance(each, ServiceDemand)),
        points=tuple(entry for entry in points if isinstance(entry, OperatingPoints)),
        slice_points=tuple(entry for entry in points if isinstance(entry, SlicePoints)),
        llm_services=tuple(each for each in services if isinstance(each, LlmDemand)),
        llm_points=fields.each("llm_points", read_llm_points)
        if fields.given("llm_points")
        else (),
        step_laws=fields.each("step_laws", read_step_law)
        if fields.given("step_laws")
        else (),
        length_tables=fields.each("length_tables", read_length_pairs)
        if fields.given("length_tables")
        else (),
        current=fields.read("current", _plan) if fields.has("current") else None,
        migration_cost_usd_per_hour=_number_or_0(fields, "migration_cost_usd_per_hour"),
        start_usd_per_second_and_gpu=fields.read("start_cost", _start_cost)
        if fields.given("start_cost")
        else 0.0,
    )
    fields.done()
    if version == 1 and _needs_version_2(problem):
        message = (
            "must be 2 where GPUs are uncapped or cut into slices, or services have "
            "anti_affinity or are of kind llm, and with step_laws or length_tables"
        )
        raise InvalidInput("version", message)
    # Last, since a reference can be judged only once all names are known.
    _check_references(problem)
    return problem


def _needs_version_2(problem: Problem) -> bool:
    """Whether anything of it is not in version 1 of the contract."""
    return (
        any(each.slices or each.overload is not None for each in problem.gpu_types)
        or bool(problem.slice_points)
        or problem.has_labels
        or bool(problem.llm_services or problem.step_laws or problem.length_tables)
        or any(each.gpus_per_node > 1 for each in problem.gpu_types)
    )


def _start_cost(document: object, path: str) -> float:
    fields = Fields(document, path, RESERVED)
    usd = fields.number("usd_per_start_second_and_gpu")
    fields.done()
    return usd


def _service(document: object, path: str) -> ServiceDemand | LlmDemand:
    fields = Fields(document, path, RESERVED)
    if fields.given("kind") and fields.choice("kind", _KINDS) == "llm":
        return read_llm_service(fields)
    return _read_service(fields)


def _number_or_0(fields: Fields, name: str) -> float:
    return fields.number(name) if fields.given(name) else 0.0


def _plan(document: object, path: str) -> Plan:
    return plan_from_document(document, path)[0]


def _capacity_law(document: object, path: str) -> CapacityLaw:
    fields = Fields(document, path)
    percentiles = fields.each(
        "percentiles",
        lambda v, p: read_number(v, p, above=0.0, at_most=MAX_PERCENTILE),
        at_least=1,
    )
    batches = fields.each(
        "batches", lambda v, p: read_integer(v, p, at_least=1), at_least=1
    )
    ratios = fields.each(
        "slo_ratios", lambda v, p: read_number(v, p, at_least=1.0), at_least=2
    )
    refuse_repeats(fields.at("percentiles"), percentiles)
    refuse_repeats(fields.at("batches"), batches)
    # Interpolation divides by the distance of two ratios.
    if any(right <= left for left, right in itertools.pairwise(ratios)):
        raise InvalidInput(fields.at("slo_ratios"), "must ascend strictly")
    utilisation = _utilisation(fields, (len(percentiles), len(batches), len(ratios)))
    fields.done()
    return CapacityLaw(
        percentiles=percentiles,
        batches=batches,
        slo_ratios=ratios,
        max_utilisation=utilisation,
    )


def _utilisation(fields: Fields, shape: tuple[int, int, int]) -> LawTable:
    path = fields.at("max_utilisation")
    table = tuple(
        tuple(
            tuple(
                read_number(value, at, at_most=1.0)
                for value, at in read_items(column, column_path)
            )
            for column, column_path in read_items(plane, plane_path)
        )
        for plane, plane_path in fields.items("max_utilisation")
    )
    if len(table) != shape[0] or any(len(plane) != shape[1] for plane in table):
        raise InvalidInput(
            path, f"must have {shape[0]} × {shape[1]} × {shape[2]} values"
        )
    for p, plane in enumerate(table):
        for b, column in enumerate(plane):
            _check_column(column, f"{path}[{p}][{b}]", size=shape[2])
    return table


def _check_column(column: Sequence[float], path: str, *, size: int) -> None:
    if len(column) != size:
        raise InvalidInput(path, f"must have {size} values, not {len(column)}")
    # Solvers search along the ratio by bisection, which needs a law that never falls.
    if any(right < left for left, right in itertools.pairwise(column)):
        raise InvalidInput(path, "must not fall along the ratio")


def service_from_document(document: object, path: str) -> ServiceDemand:
    """One entry of `services`. Raises InvalidInput, whose field begins with `path`."""
    return _read_service(Fields(document, path, RESERVED))


def _read_service(fields: Fields) -> ServiceDemand:
    limits = read_limits(fields)
    service = ServiceDemand(
        name=fields.text("name"),
        network=fields.text("network"),
        slo_ms=fields.number("slo_ms", above=0.0),
        percentile=fields.number("percentile", above=0.0, at_most=MAX_PERCENTILE),
        arrival_rate_rps=fields.number("arrival_rate_rps"),
        priority=fields.number("priority", above=0.0),
        min_replicas=limits.min_replicas,
        max_replicas=limits.max_replicas,
        allowed_gpu_types=limits.allowed_gpu_types,
        anti_affinity=frozenset(fields.each("anti_affinity", read_text))
        if fields.given("anti_affinity")
        else frozenset(),
    )
    fields.given("kind")
    fields.done()
    return service


def _points(document: object, path: str) -> OperatingPoints | SlicePoints:
    fields = Fields(document, path, RESERVED)
    if fields.given("slice"):
        return read_slice_points(fields)
    points = OperatingPoints(
        network=fields.text("network"),
        gpu_type=fields.text("gpu_type"),
        sensitivity=fields.number("sensitivity"),
        rows=fields.read("rows", read_rows),
    )
    fields.done()
    return points


def _check_references(problem: Problem) -> None:
    """Refuse duplicate names, percentiles and batches that the law lacks, and names that nothing defines."""
    refuse_repeats("gpu_types", tuple(gpu_type.name for gpu_type in problem.gpu_types))
    models = {service.name: service for service in problem.llm_services}
    refuse_repeats("services", tuple(each.name for each in problem.all_services))
    refuse_repeats(
        "points", tuple((points.network, points.gpu_type) for points in problem.points)
    )
    refuse_repeats(
        "points",
        tuple((p.network, p.gpu_type, p.profile) for p in problem.slice_points),
    )
    types = {gpu_type.name: gpu_type for gpu_type in problem.gpu_types}
    keys = ((each.service, each.gpu_type) for each in problem.llm_points)
    refuse_repeats("llm_points", tuple(keys))
    for index, llm_points in enumerate(problem.llm_points):
        check_llm_points(models, types, llm_points, f"llm_points[{index}]")
    check_step_laws(problem)
    for slice_points in problem.slice_points:
        check_slice_points(problem.capacity_law.batches, types, slice_points)
    for index, service in enumerate(problem.services):
        _check_service(problem, types, service, f"services[{index}]")
    for index, points in enumerate(problem.points):
        _check_points(problem, types, points, f"points[{index}]")
    # Under max_goodput all GPUs of a type are paid for (`laws.cost`), so that their number must be known.
    if problem.objective == "max_goodput" and any(
        gpu_type.count is None for gpu_type in problem.gpu_types
    ):
        raise InvalidInput(
            "gpu_types", "every count must be a number under max_goodput, not null"
        )


def _check_service(
    problem: Problem, types: dict[str, GpuType], service: ServiceDemand, path: str
) -> None:
    percentiles = problem.capacity_law.percentiles
    if service.percentile not in percentiles:
        known = ", ".join(f"{value:g}" for value in percentiles)
        raise InvalidInput(
            f"{path}.percentile",
            f"{service.percentile:g} is not in the capacity law, which has {known}",
        )
    for name in service.allowed_gpu_types or ():
        if name not in types:
            raise InvalidInput(
                f"{path}.allowed_gpu_types", f"no GPU type is called {name!r}"
            )


def _check_points(
    problem: Problem, types: dict[str, GpuType], points: OperatingPoints, path: str
) -> None:
    gpu_type = types.get(points.gpu_type)
    if gpu_type is None:
        raise InvalidInput(
            f"{path}.gpu_type", f"no GPU type is called {points.gpu_type!r}"
        )
    batches = set(problem.capacity_law.batches)
    for index, row in enumerate(points.rows):
        if row.batch not in batches:
            raise InvalidInput(
                f"{path}.rows[{index}].batch",
                f"{row.batch} is not a batch of the capacity law",
            )
        if gpu_type.overload is not None and row.sm_percent != 100.0:
            raise InvalidInput(
                f"{path}.rows[{index}].sm_percent",
                f"{gpu_type.name} is uncapped: every replica has 100, not {row.sm_percent:g}",
            )
        # In percent and not in steps, so that the tolerance is the contract's 1e-6 whatever the step is.
        steps = row.sm_percent / gpu_type.sm_percent_step
        if abs(steps - round(steps)) * gpu_type.sm_percent_step > 1e-6:
            raise InvalidInput(
                f"{path}.rows[{index}].sm_percent",
                f"{row.sm_percent:g} is not a multiple of {gpu_type.name}'s step, {gpu_type.sm_percent_step:g}",
            )


def problem_document(problem: Problem) -> dict[str, object]:
    """The contract's JSON document of a Problem, ready for `json.dumps`."""
    law = problem.capacity_law
    # Without `power_budget_w`, `survival` and what is left out below, which are ours and no fields of the contract.
    models = [llm_service_document(service) for service in problem.llm_services]
    document: dict[str, object] = {
        "version": 2 if _needs_version_2(problem) else 1,
        "objective": problem.objective,
        "energy_price_usd_per_kwh": problem.energy_price_usd_per_kwh,
        "max_replicas_per_gpu": problem.max_replicas_per_gpu,
        "capacity_law": {
            "percentiles": law.percentiles,
            "batches": law.batches,
            "slo_ratios": law.slo_ratios,
            "max_utilisation": law.max_utilisation,
        },
        "gpu_types": [gpu_type_document(each) for each in problem.gpu_types],
        "services": [*map(_service_document, problem.services), *models],
        "points": [
            *(_points_document(points) for points in problem.points),
            *(slice_points_document(points) for points in problem.slice_points),
        ],
        "current": None if problem.current is None else plan_document(problem.current),
        "migration_cost_usd_per_hour": problem.migration_cost_usd_per_hour,
    }
    # What version 1 lacks is written only where there is any.
    if problem.llm_points:
        document["llm_points"] = [*map(llm_points_document, problem.llm_points)]
    if problem.step_laws:
        document["step_laws"] = [*map(fields_document, problem.step_laws)]
    if problem.length_tables:
        document["length_tables"] = [*map(fields_document, problem.length_tables)]
    if problem.start_usd_per_second_and_gpu:
        usd = problem.start_usd_per_second_and_gpu
        document["start_cost"] = {"usd_per_start_second_and_gpu": usd}
    return document


def _service_document(service: ServiceDemand) -> dict[str, object]:
    document = document_without(service, "max_replica_rps", "anti_affinity")
    # Version 1 knows no labels: services without any are written as it has them.
    labels = {"anti_affinity": sorted(service.anti_affinity)}
    return document | labels if service.anti_affinity else document


def _points_document(points: OperatingPoints) -> dict[str, object]:
    return fields_document(points) | {"rows": [row[:-1] for row in points.rows]}
