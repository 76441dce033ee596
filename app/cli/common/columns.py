"""One row of a table for one object of each kind. Pure functions of what the API answers."""

from datetime import UTC, datetime

from agents.base.plurals import counted
from app.cli.common.client import Document, dig, documents, number, text
from app.cli.common.output import (
    BAD,
    FAINT,
    GOOD,
    WARN,
    Cells,
    ColouredCell,
    amount,
    bad,
    faint,
    good,
    plain,
    time_text,
    usd,
    warn,
)

SILENT_AFTER_S = 15.0
"""Agents report every 2 s; by default the loop plans without a node that says nothing for so long."""


def slo_text(service: Document) -> str:
    """`p98 ≤ 50 ms`; of a language model `p95 ≤ 2000 + 50 ms`, until the first token and between tokens."""
    percentile = number(service, "spec.slo.percentile") or 0
    limit = plain(number(service, "spec.slo.latency_ms"))
    if text(service, "spec.kind") == "llm":
        first, between = (
            plain(number(service, f"spec.slo.{name}_ms")) for name in ("ttft", "itl")
        )
        limit = f"{first} + {between}"
    return f"p{100 * percentile:g} ≤ {limit} ms"


def condition(service: Document, kind: str) -> Document:
    """One of a service's conditions; empty when nothing is said of it."""
    return next(
        (e for e in documents(service, "status.conditions") if e.get("type") == kind),
        {},
    )


def truth_cell(entry: Document) -> ColouredCell:
    """A condition's reason in the colour of its status."""
    # Unknown is no fault, and nothing to rely on either.
    style = {"True": GOOD, "False": BAD}.get(text(entry, "status"), WARN)
    return ColouredCell(text=text(entry, "reason") or "Unknown", style=style)


def share_cell(share: float | None, wanted: float | None) -> ColouredCell:
    """An attainment in percent, red when it is below the one that is wanted."""
    if share is None:
        return faint("-")
    # Without a promise nothing can be missed.
    style = GOOD if wanted is None or share >= wanted else BAD
    return ColouredCell(text=f"{100 * share:.2f} %", style=style)


def service_row(item: Document) -> Cells:
    replicas = dig(item, "status.replicas")
    by_type = (
        {str(name): int(count) for name, count in replicas.items()}
        if isinstance(replicas, dict)
        else {}
    )
    return (
        text(item, "metadata.name"),
        text(item, "spec.network"),
        slo_text(item),
        amount(number(item, "status.reading.arrival_rate_rps")),
        share_cell(
            number(item, "status.reading.attainment"),
            number(item, "spec.slo.percentile"),
        ),
        str(sum(by_type.values())),
        truth_cell(condition(item, "Ready")),
    )


def service_wide_cells(item: Document) -> Cells:
    replicas = dig(item, "status.replicas")
    return (
        text(item, "metadata.project"),
        plain(dig(item, "spec.priority")),
        text(item, "spec.mode"),
        amount(number(item, "status.planned_rate_rps")),
        amount(number(item, "status.reading.latency_ms")),
        plain(replicas),
        text(item, "status.endpoint") or "-",
    )


def endpoint_row(item: Document) -> Cells:
    nodes = documents(item, "nodes")
    ready = sum(int(number(node, "ready_replicas") or 0) for node in nodes)
    carrying = [node for node in nodes if number(node, "weight_rps")]
    return (
        text(item, "service"),
        str(len(carrying)),
        good(str(ready)) if ready else warn("0"),
        text(item, "url") or faint("-"),
    )


def node_row(item: Document) -> Cells:
    types = [text(gpu, "gpu_type") for gpu in documents(item, "spec.gpus")]
    counts = ", ".join(f"{types.count(name)} × {name}" for name in dict.fromkeys(types))
    silent_s = number(item, "status.silent_for_s")
    was_seen = dig(item, "status.last_seen_at") is not None
    return (
        text(item, "metadata.name"),
        _node_state(item, len(types)) if was_seen else warn("never seen"),
        f"{silent_s:.0f} s ago" if was_seen and silent_s is not None else "-",
        plain(dig(item, "status.observed_generation")),
        counts or "-",
    )


def _node_state(item: Document, gpus: int) -> ColouredCell:
    # A silent node's other figures are old: nothing else that it said may still be so.
    if (number(item, "status.silent_for_s") or 0.0) > SILENT_AFTER_S:
        return bad("silent")
    # It follows a command that this control plane never made, and none of this one's until the next plan.
    observed = number(item, "status.observed_generation") or 0.0
    if observed > (number(item, "status.wanted_generation") or 0.0):
        return bad("ahead")
    if dig(item, "status.drain"):
        return warn("draining")
    if dig(item, "spec.cordoned"):
        return warn("cordoned")
    if int(number(item, "status.healthy_gpus") or 0) < gpus:
        return bad("unhealthy GPU")
    return good("ready")


def node_wide_cells(item: Document) -> Cells:
    return (
        text(item, "status.agent_version") or "-",
        amount(number(item, "status.clock_skew_s"), 2),
        plain(dig(item, "status.problems")),
    )


def gpu_row(item: Document) -> Cells:
    # A GPU that fails matters more than one that somebody took out of use.
    if not item.get("healthy"):
        state = bad("unhealthy")
    else:
        state = warn("cordoned") if item.get("cordoned") else good("healthy")
    return text(item, "id"), text(item, "node"), text(item, "gpu_type"), state


def gpu_type_row(item: Document) -> Cells:
    return (
        text(item, "metadata.name"),
        usd(number(item, "spec.price_usd_per_hour"), 3),
        amount(number(item, "spec.memory_mib"), 0),
        amount(number(item, "spec.idle_w"), 0),
        amount(number(item, "spec.power_cap_w"), 0),
        _clocks(item),
    )


def gpu_type_wide_cells(item: Document) -> Cells:
    step = plain(dig(item, "spec.sm_percent_step"))
    return step, text(item, "status.provenance") or "-"


def _clocks(gpu_type: Document) -> str:
    """`1110 to 1590 (3)`: the lowest, the highest, and how many there are."""
    clocks = dig(gpu_type, "spec.clocks_mhz")
    return (
        f"{clocks[0]:g} to {clocks[-1]:g} ({len(clocks)})"
        if isinstance(clocks, list) and clocks
        else "-"
    )


def network_row(item: Document) -> Cells:
    types = dig(item, "status.gpu_types")
    return (
        text(item, "metadata.name"),
        str(len(types)) if isinstance(types, list) else "-",
        text(item, "spec.description") or "-",
    )


def network_wide_cells(item: Document) -> Cells:
    return (plain(dig(item, "status.gpu_types")),)


def profile_row(item: Document) -> Cells:
    version = plain(item.get("version")) + ("" if item.get("is_current") else " (old)")
    return (
        text(item, "network"),
        text(item, "gpu_type"),
        version,
        text(item, "provenance"),
    )


def profile_wide_cells(item: Document) -> Cells:
    return (text(item, "source") or "-",)


def project_row(item: Document) -> Cells:
    return (
        text(item, "metadata.name"),
        time_text(dig(item, "metadata.created_at")),
        plain(dig(item, "metadata.labels")),
    )


def budget_row(item: Document) -> Cells:
    used = number(item, "status.spent_percent")
    # 80 %: from here on the control plane warns in events, too.
    style = "" if used is None else BAD if used >= 100 else WARN if used >= 80 else GOOD
    return (
        text(item, "metadata.name"),
        text(item, "spec.project") or "whole cluster",
        usd(number(item, "spec.usd"), 2),
        text(item, "spec.period"),
        usd(number(item, "status.spent_usd"), 2),
        ColouredCell(text="-" if used is None else f"{used:.1f} %", style=style),
        usd(number(item, "status.projected_usd"), 2),
        _what_is_done(item),
    )


def _what_is_done(item: Document) -> ColouredCell:
    """Its action, and on how many services it acts now."""
    less = int(number(item, "status.degraded_services") or 0)
    action = text(item, "spec.action")
    return (
        warn(f"{action}: {counted(less, 'service')} for less")
        if less
        else ColouredCell(text=action)
    )


def webhook_row(item: Document) -> Cells:
    error = text(item, "status.last_error")
    return (
        text(item, "metadata.name"),
        plain(dig(item, "spec.kinds") or "all"),
        "yes" if dig(item, "spec.enabled") else "no",
        plain(dig(item, "status.waiting")),
        time_text(dig(item, "status.last_delivered_at")),
        ColouredCell(text=error or "-", style=BAD if error else FAINT),
    )


def policy_row(item: Document) -> Cells:
    is_paused = bool(dig(item, "spec.paused"))
    return (
        text(item, "metadata.name"),
        text(item, "spec.policy"),
        text(item, "spec.mode"),
        ColouredCell(text=plain(is_paused), style=WARN if is_paused else ""),
        plain(dig(item, "spec.period_s")),
        text(item, "spec.objective"),
        plain(dig(item, "status.version")),
    )


def policy_wide_cells(item: Document) -> Cells:
    groups = documents(item, "spec.groups")
    return (
        ", ".join(f"{text(group, 'name')}: {text(group, 'policy')}" for group in groups)
        or "-",
    )


PLAN_STYLES = {
    "target": GOOD,
    "refused": BAD,
    "rejected": BAD,
    "lost": BAD,
    "proposed": WARN,
    "approved": WARN,
}


def plan_row(item: Document) -> Cells:
    state = text(item, "state")
    gap = number(item, "gap_percent")
    return (
        plain(item.get("id")),
        time_text(item.get("at")),
        ColouredCell(text=state, style=PLAN_STYLES.get(state, "")),
        text(item, "solution") or "-",
        usd(number(item, "cost_usd_per_hour"), 2),
        "-" if gap is None else f"{gap:.1f}",
        _plan_reason(item),
    )


def _plan_reason(item: Document) -> str:
    newer = number(item, "replaced_by")
    if newer is not None:
        return f"replaced by plan {newer:.0f}"
    return text(item, "reason") or text(item, "method") or "-"


def plan_wide_cells(item: Document) -> Cells:
    milliseconds = 1000 * (number(item, "seconds") or 0.0)
    return text(item, "policy"), plain(item.get("generation")), amount(milliseconds, 0)


def demand_row(item: Document) -> Cells:
    return (
        text(item, "service"),
        amount(number(item, "arrival_rate_rps")),
        text(item, "method"),
        time_text(item.get("at")),
        plain(item.get("plan_id")),
    )


def token_row(item: Document) -> Cells:
    return (
        text(item, "id"),
        # Logins at the identity provider are all called alike.
        text(item, "person") or text(item, "name"),
        text(item, "scope"),
        _token_state(item),
        plain(item.get("projects") or "all"),
        text(item, "node") or "-",
    )


def _token_state(item: Document) -> ColouredCell:
    # Revoked beats expired: it says that somebody acted.
    if item.get("revoked_at"):
        return bad("revoked")
    expires = text(item, "expires_at")
    # The API keeps expired tokens in its list, without a word for their state.
    if expires and datetime.fromisoformat(expires) <= datetime.now(UTC):
        return bad("expired")
    # It is valid for a moment yet, and its holder should take the new one.
    if item.get("rotated_at"):
        return warn("rotated")
    return good("valid") if item.get("uses_left") != 0 else warn("used up")


def token_wide_cells(item: Document) -> Cells:
    return (
        time_text(item.get("created_at")),
        time_text(item.get("last_used_at")),
        time_text(item.get("expires_at")),
    )
