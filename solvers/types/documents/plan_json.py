"""Plan from and to the contract's JSON, versions 1 and 2: strict in, exact out."""

import json
from typing import cast

from solvers.types.documents.gpu_type_json import (
    read_slice_replica,
    slice_replica_document,
)
from solvers.types.documents.llm_json import read_llm_replica
from solvers.types.documents.strict_json import (
    RESERVED,
    Fields,
    document_without,
    fields_document,
    parse_json,
)
from solvers.types.errors import InvalidInput
from solvers.types.outcome import PLAN_STATUSES, PlanReport, PlanStatus
from solvers.types.plan import (
    UNSERVED_REASONS,
    GpuPlan,
    Plan,
    ReplicaPlan,
    Unserved,
    UnservedReason,
)


def plan_from_json(text: str | bytes) -> tuple[Plan, PlanReport]:
    """The Plan and its report that the JSON text states. Raises InvalidInput, which names the field and the remedy."""
    plan, report = plan_from_document(parse_json(text))
    if report is None:
        raise InvalidInput("report", "this field is missing")
    return plan, report


def plan_to_json(plan: Plan, report: PlanReport) -> str:
    """The contract's JSON text of a Plan with its report."""
    return json.dumps(plan_document(plan, report), indent=1, allow_nan=False)


def plan_from_document(
    document: object, path: str = ""
) -> tuple[Plan, PlanReport | None]:
    """The Plan that a parsed JSON document states, and its report where it has one. Raises InvalidInput."""
    fields = Fields(document, path, RESERVED)
    # Before anything else: a later version may give the other fields another meaning.
    version = read_version(fields)
    plan = Plan(
        policy=fields.text("policy"),
        gpus=fields.each("gpus", _gpu),
        llm_replicas=fields.each("llm_replicas", read_llm_replica)
        if fields.given("llm_replicas")
        else (),
        unserved=fields.each("unserved", _unserved),
    )
    report = fields.read("report", _report) if fields.has("report") else None
    fields.done()
    if version == 1 and _needs_version_2(plan):
        message = "must be 2 where GPUs are cut into slices, or with llm_replicas"
        raise InvalidInput(fields.at("version"), message)
    return plan, report


def read_version(fields: Fields) -> int:
    """The contract's version that a document states. Raises InvalidInput for one that this program cannot read."""
    version = fields.integer("version")
    if version not in (1, 2):
        message = "this program reads versions 1 and 2 only"
        raise InvalidInput(fields.at("version"), message)
    return version


def _needs_version_2(plan: Plan) -> bool:
    has_slices = any(replica.slice for gpu in plan.gpus for replica in gpu.replicas)
    return has_slices or bool(plan.llm_replicas)


def plan_document(plan: Plan, report: PlanReport | None = None) -> dict[str, object]:
    """The contract's JSON document of a Plan, ready for `json.dumps`."""
    document: dict[str, object] = {
        "version": 2 if _needs_version_2(plan) else 1,
        "policy": plan.policy,
        "gpus": [_gpu_document(gpu) for gpu in plan.gpus],
        "unserved": [_unserved_document(entry) for entry in plan.unserved],
    }
    if plan.llm_replicas:
        document["llm_replicas"] = [*map(fields_document, plan.llm_replicas)]
    if report is not None:
        document["report"] = report_document(report)
    return document


def report_document(report: PlanReport) -> dict[str, object]:
    """The contract's JSON document of a report."""
    document: dict[str, object] = {
        "status": report.status,
        "cost_usd_per_hour": report.cost_usd_per_hour,
        "lower_bound_usd_per_hour": report.lower_bound_usd_per_hour,
        "gap_percent": report.gap_percent,
        "seconds": report.seconds,
        "method": report.method,
        "messages": list(report.messages),
    }
    # The contract has the two under `max_goodput` only; they are left out and not null.
    if report.served_weight is not None:
        document["served_weight"] = report.served_weight
        document["served_weight_upper_bound"] = report.served_weight_upper_bound
    return document


def _gpu(document: object, path: str) -> GpuPlan:
    fields = Fields(document, path, RESERVED)
    gpu = GpuPlan(
        gpu_type=fields.text("gpu_type"),
        count=fields.integer("count", at_least=1) if fields.given("count") else 1,
        clock_mhz=fields.number("clock_mhz", above=0.0),
        replicas=fields.each("slices", read_slice_replica, at_least=1)
        if fields.given("slices")
        else fields.each("replicas", _replica, at_least=1),
    )
    fields.done()
    return gpu


def _replica(document: object, path: str) -> ReplicaPlan:
    fields = Fields(document, path, RESERVED)
    replica = ReplicaPlan(
        service=fields.text("service"),
        sm_percent=fields.number("sm_percent", above=0.0, at_most=100.0),
        batch=fields.integer("batch", at_least=1),
        arrival_rate_rps=fields.number("arrival_rate_rps"),
    )
    fields.done()
    return replica


def _unserved(document: object, path: str) -> Unserved:
    fields = Fields(document, path, RESERVED)
    unserved = Unserved(
        service=fields.text("service"),
        rate_rps=fields.number("rate_rps"),
        reason=cast(UnservedReason, fields.choice("reason", UNSERVED_REASONS)),
        replicas_missing=fields.integer("replicas_missing")
        if fields.given("replicas_missing")
        else 0,
    )
    fields.done()
    return unserved


def _report(document: object, path: str) -> PlanReport:
    fields = Fields(document, path, RESERVED)
    report = PlanReport(
        status=cast(PlanStatus, fields.choice("status", PLAN_STATUSES)),
        cost_usd_per_hour=fields.number("cost_usd_per_hour"),
        lower_bound_usd_per_hour=_number_or_null(fields, "lower_bound_usd_per_hour"),
        gap_percent=_number_or_null(fields, "gap_percent"),
        seconds=fields.number("seconds"),
        # Unlike names, texts for people may be empty or of any length.
        method=fields.read("method", _any_text),
        messages=fields.each("messages", _any_text),
        served_weight=fields.number("served_weight")
        if fields.given("served_weight")
        else None,
        served_weight_upper_bound=(
            _number_or_null(fields, "served_weight_upper_bound")
            if fields.given("served_weight_upper_bound")
            else None
        ),
    )
    fields.done()
    return report


def _number_or_null(fields: Fields, name: str) -> float | None:
    if fields.value(name) is None:
        return None
    # Unlike a cost, a bound or a gap may be negative.
    return fields.number(name, at_least=float("-inf"))


def _any_text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(path, "must be a string")
    return value


def _gpu_document(gpu: GpuPlan) -> dict[str, object]:
    document: dict[str, object] = {
        "gpu_type": gpu.gpu_type,
        "count": gpu.count,
        "clock_mhz": gpu.clock_mhz,
    }
    # A GPU has one way of being shared; the checker names those that a plan confuses.
    if any(replica.slice for replica in gpu.replicas):
        document["slices"] = [slice_replica_document(each) for each in gpu.replicas]
    else:
        document["replicas"] = [
            document_without(each, "slice") for each in gpu.replicas
        ]
    return document


def _unserved_document(entry: Unserved) -> dict[str, object]:
    document: dict[str, object] = {
        "service": entry.service,
        "rate_rps": entry.rate_rps,
        "reason": entry.reason,
    }
    # Left out where it is 0, which is what its absence means to a reader.
    if entry.replicas_missing:
        document["replicas_missing"] = entry.replicas_missing
    return document
