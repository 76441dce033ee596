"""Language models' services, rows and replicas from and to the contract's JSON, version 2: strict in, exact out."""

from collections.abc import Mapping
from typing import NamedTuple, cast, get_args

from solvers.types.documents.strict_json import (
    RESERVED,
    Fields,
    document_without,
    fields_document,
    read_integer,
    read_items,
    read_number,
    read_text,
    refuse_repeats,
)
from solvers.types.errors import InvalidInput
from solvers.types.llm import (
    ItlKind,
    LlmDemand,
    LlmPoints,
    LlmReplicaPlan,
    LlmRow,
    Provenance,
    TokenSlo,
)
from solvers.types.state import GpuType

MAX_PERCENTILE = 1 - 1e-12
_ALL_SMS = 100.0
_COUNTS = ("tp", "max_num_batched_tokens", "max_num_seqs")
"""Columns of a row that are whole numbers."""


def read_llm_service(fields: Fields) -> LlmDemand:
    """One entry of `services` whose kind is `llm`. Raises InvalidInput."""
    terms, limits = fields.read("llm", _terms), read_limits(fields)
    service = LlmDemand(
        name=fields.text("name"),
        network=fields.text("network"),
        slo=terms.slo,
        lengths=terms.lengths,
        arrival_cv=terms.arrival_cv,
        arrival_rate_rps=fields.number("arrival_rate_rps"),
        priority=fields.number("priority", above=0.0),
        min_replicas=limits.min_replicas,
        max_replicas=limits.max_replicas,
        allowed_gpu_types=limits.allowed_gpu_types,
    )
    fields.done()
    return service


class StatedLimits(NamedTuple):
    """What services of both kinds say of their replicas."""

    min_replicas: int
    max_replicas: int | None
    allowed_gpu_types: tuple[str, ...] | None


def read_limits(fields: Fields) -> StatedLimits:
    """The limits of one entry of `services`. Raises InvalidInput."""
    limits = StatedLimits(
        fields.integer("min_replicas") if fields.given("min_replicas") else 0,
        fields.integer("max_replicas", at_least=1)
        if fields.has("max_replicas")
        else None,
        fields.each("allowed_gpu_types", read_text)
        if fields.has("allowed_gpu_types")
        else None,
    )
    # No plan could keep both, so that every one would be infeasible for a reason that is not seen.
    if limits.max_replicas is not None and limits.min_replicas > limits.max_replicas:
        message = f"{limits.min_replicas} is above max_replicas, {limits.max_replicas}"
        raise InvalidInput(fields.at("min_replicas"), message)
    return limits


class _Terms(NamedTuple):
    """The object `llm` of a service."""

    slo: TokenSlo
    lengths: str
    arrival_cv: float


def _terms(document: object, path: str) -> _Terms:
    fields = Fields(document, path, RESERVED)
    slo = TokenSlo(
        ttft_ms=fields.number("slo_ttft_ms", above=0.0),
        itl_ms=fields.number("slo_itl_ms", above=0.0),
        percentile=fields.number("percentile", above=0.0, at_most=MAX_PERCENTILE),
        itl=cast(ItlKind, fields.choice("itl", get_args(ItlKind)))
        if fields.given("itl")
        else "token",
    )
    terms = _Terms(
        slo=slo,
        lengths=fields.text("lengths") if fields.given("lengths") else "",
        arrival_cv=fields.number("arrival_cv", above=0.0, at_most=20.0)
        if fields.given("arrival_cv")
        else 1.0,
    )
    fields.done()
    return terms


def llm_service_document(service: LlmDemand) -> dict[str, object]:
    """One entry of `services`."""
    document = document_without(
        service, "slo", "lengths", "arrival_cv", "max_replica_rps"
    )
    terms: dict[str, object] = {
        "slo_ttft_ms": service.slo.ttft_ms,
        "slo_itl_ms": service.slo.itl_ms,
        "percentile": service.slo.percentile,
        "itl": service.slo.itl,
        "arrival_cv": service.arrival_cv,
    }
    if service.lengths:
        terms["lengths"] = service.lengths
    return {**document, "kind": "llm", "llm": terms}


def read_llm_points(document: object, path: str) -> LlmPoints:
    """One entry of `llm_points`. Raises InvalidInput."""
    fields = Fields(document, path, RESERVED)
    points = LlmPoints(
        service=fields.text("service"),
        gpu_type=fields.text("gpu_type"),
        network=fields.text("network"),
        provenance=cast(Provenance, fields.choice("provenance", get_args(Provenance))),
        rows=fields.each("rows", _row),
    )
    fields.done()
    # A plan names a row by these five alone.
    refuse_repeats(fields.at("rows"), tuple(row[:5] for row in points.rows))
    return points


def _row(value: object, path: str) -> LlmRow:
    names = LlmRow._fields
    items = list(read_items(value, path))
    if len(items) != len(names):
        message = f"must have the {len(names)} values {', '.join(names)}"
        raise InvalidInput(path, message)
    figures = [
        read_integer(item, f"{path}.{name}", at_least=1)
        if name in _COUNTS
        else read_number(item, f"{path}.{name}")
        for name, (item, _) in zip(names, items, strict=True)
    ]
    row = LlmRow._make(figures)
    if row.tp & (row.tp - 1):
        message = f"must be a power of two, not {row.tp}"
        raise InvalidInput(f"{path}.tp", message)
    if row.sm_percent != _ALL_SMS:
        message = (
            f"must be 100, not {row.sm_percent:g}: language models have whole GPUs"
        )
        raise InvalidInput(f"{path}.sm_percent", message)
    return row


def llm_points_document(points: LlmPoints) -> dict[str, object]:
    """One entry of `llm_points`."""
    return fields_document(points)


def check_llm_points(
    services: Mapping[str, LlmDemand],
    types: Mapping[str, GpuType],
    points: LlmPoints,
    path: str,
) -> None:
    """Refuse names that nothing defines, and replicas that span more GPUs than a node has. Raises InvalidInput."""
    service, gpu_type = services.get(points.service), types.get(points.gpu_type)
    if service is None:
        message = f"no service of kind llm is called {points.service!r}"
        raise InvalidInput(f"{path}.service", message)
    if gpu_type is None:
        message = f"no GPU type is called {points.gpu_type!r}"
        raise InvalidInput(f"{path}.gpu_type", message)
    if points.network != service.network:
        message = f"must be the service's, {service.network!r}"
        raise InvalidInput(f"{path}.network", message)
    for index, row in enumerate(points.rows):
        if row.tp > gpu_type.gpus_per_node:
            message = (
                f"{row.tp} exceeds the type's gpus_per_node, {gpu_type.gpus_per_node}"
            )
            raise InvalidInput(f"{path}.rows[{index}].tp", message)


def read_llm_replica(document: object, path: str) -> LlmReplicaPlan:
    """One entry of a plan's `llm_replicas`. Raises InvalidInput."""
    fields = Fields(document, path, RESERVED)
    replica = LlmReplicaPlan(
        service=fields.text("service"),
        gpu_type=fields.text("gpu_type"),
        tp=fields.integer("tp", at_least=1),
        count=fields.integer("count", at_least=1) if fields.given("count") else 1,
        clock_mhz=fields.number("clock_mhz", above=0.0),
        max_num_batched_tokens=fields.integer("max_num_batched_tokens", at_least=1),
        max_num_seqs=fields.integer("max_num_seqs", at_least=1),
        arrival_rate_rps=fields.number("arrival_rate_rps"),
    )
    fields.done()
    return replica
