"""How and why a plan came about: statuses, reports, budgets, violations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, get_args

from solvers.types.parameters import (
    AS_BY_DEFAULT,
    PolicyParameters,
    Stated,
    parameters_as,
)

PlanStatus = Literal["optimal", "feasible", "greedy", "kept"]
PLAN_STATUSES: tuple[PlanStatus, ...] = get_args(PlanStatus)
"""The contract's words for how a policy came to its plan; kept: it stayed with what runs, and solved nothing new."""

Solution = Literal["optimal", "feasible", "greedy"]
"""How good the solver says that a new plan is. What becomes of the plan is its state."""

Severity = Literal["physical", "promise"]
"""Physical rules are never broken by anyone; promises may be, by baselines in simulation, and are recorded."""

LeftSms = Literal["free", "services", "tasks"]
"""free: none; services: they are room for these; tasks: services give back what they hold of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why something was held, chosen or left out. Each presenter words it once; no code reads the words."""

    kind: StrEnum
    """A member of the enumeration that stands next to the code that decides."""
    figures: Mapping[str, float | str] = field(default_factory=dict)
    """The values that its words speak of, by name."""


class SolveStatus(StrEnum):
    """How one solve ended. Every solver's own status maps to one of these; an unmapped one is UNKNOWN."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    TIME_LIMIT = "time_limit"
    UNKNOWN = "unknown"
    FAILED = "failed"

    @property
    def has_solution(self) -> bool:
        """Whether a solution came with this status."""
        # A time limit that left a solution is FEASIBLE; TIME_LIMIT alone came too early for one.
        return self in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveReport:
    """What one technique did."""

    technique: str
    """The technique's package, e.g. `autoscale`."""
    method: str
    """The way that produced the answer, e.g. `cp-sat`, `cbc`, `greedy`."""
    status: SolveStatus
    objective: float | None = None
    bound: float | None = None
    """Proven bound on the objective, where the method gives one."""
    seconds: float = 0.0
    messages: tuple[str, ...] = ()
    """Why a better way did not answer, and what the reader should know."""


PriceUnit = Literal["usd_per_hour", "weighted_rps"]
"""What prices count in: money while everything can be served; else Σ priority · served rps, which comes before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePrice:
    """What a service's demand costs at the margin."""

    service: str
    per_rps: float
    """What a request per second that is carried is worth, ≥ 0: what patterns of GPUs are compared by."""
    per_rps_more: float = 0.0
    """What one more costs, ≥ 0: less where a replica that carries the whole rate has room for more."""
    per_replica: float = 0.0
    """What one more replica that must run costs (min_replicas), > 0; what one more that may run saves (max_replicas),
    < 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTypePrice:
    """What the stock of a GPU type is worth at the margin."""

    gpu_type: str
    per_gpu: float
    """What one more GPU of it would save at most, its own price paid, ≥ 0; 0 where some stay unused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Marginal prices of a linear relaxation in which fractions of GPUs may be used (its dual solution)."""

    unit: PriceUnit
    services: tuple[ServicePrice, ...]
    gpu_types: tuple[GpuTypePrice, ...]
    short: tuple[str, ...] = ()
    """Services that even fractions of GPUs cannot serve in full."""
    relaxation_usd_per_hour: float | None = None
    """What the relaxation costs; None where the unit is not money."""
    is_exact: bool = False
    """Whether the relaxation was solved to the end; otherwise the prices are near the right ones."""

    def of_service(self, name: str) -> ServicePrice | None:
        """The prices of a service; None where it had no place in the relaxation."""
        return next((price for price in self.services if price.service == name), None)

    def of_gpu_type(self, name: str) -> float:
        """What one more GPU of a type is worth."""
        return next(
            (price.per_gpu for price in self.gpu_types if price.gpu_type == name), 0.0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The contract's report, plus one SolveReport per step of the policy."""

    status: PlanStatus
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float | None = None
    gap_percent: float | None = None
    seconds: float = 0.0
    method: str = ""
    messages: tuple[str, ...] = ()
    served_weight: float | None = None
    """Only under `max_goodput`: Σ priority · served rps."""
    served_weight_upper_bound: float | None = None
    steps: tuple[SolveReport, ...] = ()
    """Not part of the contract's JSON; kept in the database and shown by `explain`."""
    prices: Prices | None = None
    """The same; None where the policy knows none."""

    @property
    def solution(self) -> Solution | None:
        """How good the plan is; None: the policy stayed with what runs."""
        return None if self.status == "kept" else self.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken rule of one plan. `rule` is the contract's name."""

    rule: str
    severity: Severity
    where: str
    """The place in the plan, e.g. `gpus[3].replicas[0]` or `service chat`."""
    detail: str
    """The values on both sides, in words."""


IntegerSolver = Literal["cp_sat", "highs", "cbc"]
"""CP-SAT of OR-Tools; HiGHS or CBC through PuLP."""


def _no_time_passes() -> float:
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stability:
    """How willing a policy is to rearrange what runs for the sake of cost. What demand needs is served at once.

    The default minimises cost and migration cost as the contract states them, whatever it takes.
    """

    start_price: float = 0.0
    """What each launch counts for where plans serve alike, beyond `migration_cost_usd_per_hour`: a share, 0 to 1, of
    what a running replica costs on average. While it lasts two replicas are paid for, and little is left for a burst.
    """
    min_dwell_s: float = 0.0
    """Seconds for which an arrangement stays before it may be rearranged to save cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long a policy may think, and how much it may move.

    Work units decide where a solver has them; seconds are the last resort.
    """

    seconds: float = 1.0
    """Wall-clock limit of the whole plan."""
    work: float = 1.0
    """Deterministic work limit of one exact solve (CP-SAT's deterministic time; about a second on a quiet core)."""
    seed: int = 0
    threads: int = 1
    solver: IntegerSolver = "cp_sat"
    """Who solves the integer programs of policies that leave a choice (`PolicySpec.exporter`)."""
    elapsed: Callable[[], float] = _no_time_passes
    """Seconds since the plan was begun, from an injected clock; constant 0 in simulations."""
    stability: Stability = Stability()
    parameters: PolicyParameters = AS_BY_DEFAULT
    """The policy's own, as its operator set them."""
    left_sms: LeftSms = "free"
    """Who gets the SMs that services do not need of GPUs in use."""
    is_series: bool = False
    """Whether this call follows the one that left its memory, in the same process: then warm state may be used even
    without a limit of seconds, and plans follow from all calls of the series so far, not from this one's arguments."""

    def parameters_as(self, kind: type[Stated]) -> Stated:
        """The policy's parameters; its defaults where they are another policy's, or none."""
        return parameters_as(self.parameters, kind)

    def remaining_s(self) -> float:
        """Seconds left of the wall-clock limit, never negative."""
        return max(0.0, self.seconds - self.elapsed())


TICK = Budget(seconds=0.8, stability=Stability(start_price=0.2, min_dwell_s=60.0))
"""What the control loop gives a policy where its operator says nothing else."""
