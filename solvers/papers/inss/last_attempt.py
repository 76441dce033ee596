"""What `inss` remembers: the provision, and what was asked when provisions were last proposed.

While the same is asked, proposals would be the same.

Rates differ a little in every tick, and so do operating times, which are learned; both may drift by `SAME` of what they
were then. All else must be equal: fleet, services, rows, capacity law, actor, seed. Measured backlogs do not count:
they change with every reading.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from solvers.papers.inss.parameters import InssParameters
from solvers.papers.inss.provisioning import (
    Provision,
    Provisioned,
    ProvisioningRules,
    Share,
    provision_of_plan,
)
from solvers.types.problem import OperatingPoints, Problem, ServiceDemand
from solvers.types.state import Json

MEMORY_VERSION = 1
SAME = 0.05
"""A drift of a rate or a time below this part of it: what was proposed for the old one counts for the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One question to the proposer of provisions."""

    fingerprint: str
    """A hash of all that must be equal."""
    rates_rps: Mapping[str, float]
    """By service."""
    times_ms: Mapping[str, float]
    """By network and GPU type: the summed times per request of all rows."""
    may_search: bool = True
    """Whether the local search was asked as well."""

    def is_like(self, other: "Tried") -> bool:
        """Whether nothing has changed by much since the other one was asked."""
        return (
            self.fingerprint == other.fingerprint
            # Who may not search has an answer already where the search was asked too.
            and self.may_search <= other.may_search
            and _are_close(self.rates_rps, other.rates_rps)
            and _are_close(self.times_ms, other.times_ms)
        )


def tried_with(
    problem: Problem,
    rules: tuple[ProvisioningRules, InssParameters],
    *,
    actor: bytes | None,
    seed: int,
    may_search: bool,
) -> Tried:
    """What is asked now."""
    facts = (
        *_facts(problem),
        rules,
        None if actor is None else hashlib.sha256(actor).hexdigest(),
        seed,
    )
    return Tried(
        may_search=may_search,
        fingerprint=hashlib.sha256(repr(facts).encode()).hexdigest(),
        rates_rps={
            service.name: service.arrival_rate_rps for service in _services_of(problem)
        },
        times_ms={
            f"{entry.network} on {entry.gpu_type}": math.fsum(
                row.solo_ms / row.batch for row in entry.rows
            )
            for entry in _points_of(problem)
        },
    )


def _facts(problem: Problem) -> tuple[object, ...]:
    """What of a problem must be equal, for the `repr` of a dataclass has all of its fields."""
    # Sorted by name, since order means nothing.
    return (
        sorted(problem.gpu_types, key=lambda gpu_type: gpu_type.name),
        # Rates and times are compared by how far they drifted, and so are left out of the hash.
        [replace(each, arrival_rate_rps=0.0) for each in _services_of(problem)],
        [_without_times(entry) for entry in _points_of(problem)],
        problem.capacity_law,
        problem.max_replicas_per_gpu,
    )


def _services_of(problem: Problem) -> list[ServiceDemand]:
    return sorted(problem.services, key=lambda service: service.name)


def tried_to_json(tried: Tried | None) -> Json:
    """For a policy's memory."""
    if tried is None:
        return None
    return {
        "fingerprint": tried.fingerprint,
        "may_search": tried.may_search,
        "rates_rps": dict(tried.rates_rps),
        "times_ms": dict(tried.times_ms),
    }


def tried_from_json(document: Json) -> Tried | None:
    """What was remembered; None where it cannot be read."""
    if not isinstance(document, Mapping):
        return None
    fingerprint, rates, times = (
        document.get(key) for key in ("fingerprint", "rates_rps", "times_ms")
    )
    if not isinstance(fingerprint, str):
        return None
    return Tried(
        fingerprint=fingerprint,
        rates_rps=_figures(rates),
        times_ms=_figures(times),
        may_search=document.get("may_search") is not False,
    )


def _points_of(problem: Problem) -> list[OperatingPoints]:
    """Those of the services' networks, by network and GPU type."""
    # Proposals do not depend on networks that are not run.
    networks = {service.network for service in problem.services}
    return sorted(
        (entry for entry in problem.points if entry.network in networks),
        key=lambda entry: (entry.network, entry.gpu_type),
    )


def _without_times(points: OperatingPoints) -> OperatingPoints:
    rows = sorted(
        row._replace(transfer_ms=0.0, launch_ms=0.0, run_ms=0.0) for row in points.rows
    )
    return replace(points, rows=tuple(rows))


def _are_close(now: Mapping[str, float], then: Mapping[str, float]) -> bool:
    return all(
        abs(figure - then.get(name, -1.0)) <= SAME * figure
        for name, figure in now.items()
    )


def _figures(document: Json) -> Mapping[str, float]:
    if not isinstance(document, Mapping):
        return {}
    return {
        name: float(figure)
        for name, figure in document.items()
        if isinstance(figure, int | float) and not isinstance(figure, bool)
    }


def remembered(problem: Problem, memory: Json) -> Provision:
    """The provision that was remembered, else that of what runs; empty where neither can be read."""
    if isinstance(memory, Mapping) and memory.get("version") == MEMORY_VERSION:
        gpus = memory.get("gpus")
        if isinstance(gpus, list | tuple):
            return tuple(
                found for entry in gpus if (found := _provisioned(entry)) is not None
            )
    return provision_of_plan(problem.current) if problem.current is not None else ()


def _provisioned(entry: Json) -> Provisioned | None:
    """A remembered GPU; None for what is none."""
    match entry:
        case [str() as name, [*entries]]:
            shares = [_share(each) for each in entries]
            known = tuple(share for share in shares if share is not None)
            return Provisioned(name, known) if len(known) == len(shares) else None
    return None


def _share(entry: Json) -> Share | None:
    match entry:
        # A Boolean is an int to Python, and no SM percent.
        case [str() as service, int() | float() as percent] if not isinstance(
            percent, bool
        ):
            return Share(service, float(percent)) if math.isfinite(percent) else None
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class InssPast:
    """What is remembered besides the provision."""

    tried: Tried | None = None
    """What was asked when provisions were last proposed; None: never, or it cannot be read."""
    short_since_s: float | None = None
    """Since when some service has not been served in full, by the loop's clock; None: all are."""

    def shortage_began_s(self, now_s: float) -> float:
        """When the present shortage began; a clock that was set back lets it begin now."""
        return now_s if self.short_since_s is None else min(now_s, self.short_since_s)


def remembered_past(memory: Json) -> InssPast:
    """What `memory_of` wrote."""
    if not isinstance(memory, Mapping):
        return InssPast()
    return InssPast(
        tried=tried_from_json(memory.get("tried")),
        short_since_s=_figures(memory).get("short_since_s"),
    )


def memory_of(provision: Provision, past: InssPast) -> Json:
    """What the next tick must know."""
    gpus: list[Json] = [
        [gpu.gpu_type, [[share.service, share.sm_percent] for share in gpu.shares]]
        for gpu in provision
        if gpu.shares
    ]
    return {
        "version": MEMORY_VERSION,
        "gpus": gpus,
        "tried": tried_to_json(past.tried),
        "short_since_s": past.short_since_s,
    }
