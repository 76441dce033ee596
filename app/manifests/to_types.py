"""Manifests → the solvers' nouns: what users write becomes what is planned with."""

import math

from app.base.errors import InvalidRequest
from app.manifests import objects as manifests
from app.manifests import tasks as task_manifests
from app.store.store import PolicyGroup, PolicySettings
from solvers.types.llm import LlmDataSheet, LlmTerms
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import (
    ALL_PAID,
    GpuType,
    Mode,
    Scaling,
    Service,
    Slo,
    Task,
    Variant,
)
from solvers.types.survival import Survival

MAX_FIGURE = 1e9
MAX_BATCH = 65_536


def to_service(manifest: manifests.ServiceManifest) -> Service:
    """The service that a manifest states."""
    spec = manifest.spec
    return Service(
        name=manifest.metadata.name,
        project=manifest.metadata.project,
        network=spec.network,
        slo=_slo(spec),
        llm=_llm_terms(spec),
        scaling=Scaling(**spec.scaling.model_dump()),
        priority=spec.priority,
        allowed_gpu_types=None
        if spec.gpu_types.allowed is None
        else tuple(spec.gpu_types.allowed),
        excluded_gpu_types=tuple(spec.gpu_types.excluded),
        mode=Mode(spec.mode),
        variants=tuple(
            Variant(network=each.network, accuracy=each.accuracy)
            for each in spec.variants
        ),
        accuracy_floor=spec.accuracy_floor,
        survival=_survival(spec),
        anti_affinity=tuple(spec.anti_affinity),
        # Sorted: the same labels in another order are the same service.
        labels=tuple(sorted(manifest.metadata.labels.items())),
    )


def _slo(spec: manifests.ServiceSpec) -> Slo:
    # One of them is there, by the manifest's own checks.
    latency_ms = spec.slo.latency_ms or spec.slo.ttft_ms
    assert latency_ms is not None
    return Slo(
        latency_ms=latency_ms,
        percentile=spec.slo.percentile,
        budget=spec.slo.budget,
    )


def _llm_terms(spec: manifests.ServiceSpec) -> LlmTerms | None:
    if spec.kind != "llm" or spec.slo.itl_ms is None:
        return None
    llm = spec.llm or manifests.LlmSpec()
    lengths = llm.lengths or _usual_lengths(llm.max_model_len)
    return LlmTerms(
        itl_ms=spec.slo.itl_ms,
        itl=spec.slo.itl or "token",
        precision=llm.dtype,
        learns_lengths=llm.lengths is None,
        prompt_tokens=lengths.prompt,
        output_tokens=lengths.output,
        spread=lengths.spread,
        max_model_len=llm.max_model_len,
        tp=llm.tp,
    )


def _usual_lengths(longest: int) -> manifests.LengthsSpec:
    """Those of conversations, as far as they fit into the context."""
    usual = manifests.LengthsSpec()
    return manifests.LengthsSpec(
        prompt=min(usual.prompt, longest / 2), output=min(usual.output, longest / 4)
    )


def _survival(spec: manifests.ServiceSpec) -> Survival | None:
    if spec.survive is None:
        return None
    if spec.survive_share is None:
        return Survival(loss=spec.survive)
    return Survival(loss=spec.survive, share=spec.survive_share)


def to_task(manifest: task_manifests.TaskManifest) -> Task:
    """The task that a manifest states; its deadline counts from its submission."""
    spec = manifest.spec
    return Task(
        name=manifest.metadata.name,
        project=manifest.metadata.project,
        kind=spec.kind,
        # A network that only its layers describe has no name; the task's is taken.
        network=spec.network or manifest.metadata.name,
        batch=spec.batch,
        iterations=spec.total_iterations,
        due_in_s=spec.deadline_after_s,
        priority=spec.priority,
        weight=spec.weight,
        variants=tuple(
            Variant(network=each.network, accuracy=each.accuracy)
            for each in spec.variants
        ),
        accuracy_floor=spec.accuracy_floor,
        layers=tuple(sorted((spec.layers or {}).items())),
        memory_mib=spec.memory_mib,
    )


def to_gpu_type(manifest: manifests.GpuTypeManifest) -> GpuType:
    """The GPU type that a manifest states."""
    spec = manifest.spec
    # A GPU that draws more than its cap while idle could never be used.
    if spec.power_cap_w < spec.idle_w:
        raise InvalidRequest(
            f"{spec.power_cap_w:g} is below idle_w {spec.idle_w:g}",
            field="spec.power_cap_w",
        )
    return GpuType(
        name=manifest.metadata.name,
        # From here on money is float: solvers add and compare, the database keeps the decimals.
        price_usd_per_hour=float(spec.price_usd_per_hour),
        memory_mib=spec.memory_mib,
        sm_percent_step=spec.sm_percent_step,
        idle_w=spec.idle_w,
        power_cap_w=spec.power_cap_w,
        clocks_mhz=tuple(spec.clocks_mhz),
        launch_per_neighbour=spec.launch_per_neighbour,
        launch_base=spec.launch_base,
        llm=None if spec.llm is None else LlmDataSheet(**spec.llm.model_dump()),
        paid_count=ALL_PAID if spec.paid == "all" else spec.paid,
    )


def to_points(manifest: manifests.ProfileManifest) -> OperatingPoints:
    """The operating points that a manifest states. Raises InvalidRequest, which names row and field."""
    stated = manifest.spec.stall_ms or [0.0] * len(manifest.spec.rows)
    if len(stated) != len(manifest.spec.rows):
        raise InvalidRequest(
            f"has {len(stated)} entries for {len(manifest.spec.rows)} rows",
            field="spec.stall_ms",
        )
    rows = tuple(
        OperatingPoint(*row, stall_ms)
        for row, stall_ms in zip(manifest.spec.rows, stated, strict=True)
    )
    for index, row in enumerate(rows):
        _check_row(row, f"spec.rows[{index}]")
    # Planning looks points up by these three.
    if len({row[:3] for row in rows}) < len(rows):
        raise InvalidRequest(
            "two rows have the same (sm_percent, batch, clock_mhz)", field="spec.rows"
        )
    return OperatingPoints(
        network=manifest.spec.network,
        gpu_type=manifest.spec.gpu_type,
        sensitivity=manifest.spec.sensitivity,
        rows=rows,
    )


def to_latency_sigma(manifest: manifests.ProfileManifest) -> tuple[float | None, ...]:
    """The uncertainty that a manifest states of each row. Raises InvalidRequest."""
    stated = manifest.spec.latency_sigma
    rows = manifest.spec.rows
    if not isinstance(stated, list):
        return (stated,) * len(rows)
    if len(stated) != len(rows):
        raise InvalidRequest(
            f"has {len(stated)} entries for {len(rows)} rows",
            field="spec.latency_sigma",
        )
    return tuple(stated)


def to_settings(manifest: manifests.PolicyManifest) -> PolicySettings:
    """The settings that a manifest states; their version is given when they are saved."""
    groups = tuple(to_group(group) for group in manifest.spec.groups)
    stated = {
        **manifest.spec.model_dump(),
        "mode": Mode(manifest.spec.mode),
        "groups": groups,
        "carbon_g_per_kwh": tuple(manifest.spec.carbon_g_per_kwh),
    }
    return PolicySettings(**stated)


def to_group(stated: manifests.PolicyGroupSpec) -> PolicyGroup:
    """The group that a policy's manifest states."""
    return PolicyGroup(
        name=stated.name,
        policy=stated.policy,
        projects=tuple(stated.projects),
        labels=tuple(sorted(stated.labels.items())),
        mode=Mode(stated.mode),
    )


def _check_row(row: OperatingPoint, where: str) -> None:
    for index, (name, value) in enumerate(zip(row._fields, row, strict=True)):
        if not (math.isfinite(value) and 0 <= value <= MAX_FIGURE):
            raise InvalidRequest(
                f"{name} must be from 0 to {MAX_FIGURE:g}", field=f"{where}[{index}]"
            )
    # Zero passes above, as other columns may be 0.
    if not 0 < row.sm_percent <= 100:
        raise InvalidRequest(
            "sm_percent must be above 0 and at most 100", field=f"{where}[0]"
        )
    if not 1 <= row.batch <= MAX_BATCH:
        raise InvalidRequest(
            f"batch must be from 1 to {MAX_BATCH}", field=f"{where}[1]"
        )
    if not row.clock_mhz > 0:
        raise InvalidRequest("clock_mhz must be above 0", field=f"{where}[2]")
    # The sum of the three; each by itself may be 0.
    if not row.solo_ms > 0:
        raise InvalidRequest("transfer_ms, launch_ms and run_ms are all 0", field=where)
