"""What an explanation of a plan consists of. `explain` fills these, from the plan and the relaxation's prices."""

from dataclasses import dataclass
from typing import Literal

from solvers.types.outcome import PriceUnit
from solvers.types.plan import GpuPlan, ReplicaPlan

Rule = Literal[
    "slo",
    "sm",
    "memory",
    "power",
    "replicas_per_gpu",
    "stock",
    "min_replicas",
    "max_replicas",
]
"""What can keep a service from less, or cheaper, GPUs. The contract's rules, `replicas` split in three."""

ChangeKind = Literal["gpu_type", "clock", "share", "partner", "more", "fewer"]
"""What an alternative changes: the GPU type or clock for the same services; SM percent or batch of one replica; one
replica for another service's; one replica more; one fewer."""

ReliefKind = Literal[
    "slo", "power_cap", "stock", "gpu_types", "max_replicas", "survive", "percentile"
]

Basis = Literal["price", "first_order", "relaxation"]
"""Where a figure comes from. price: the dual of a limit, the most that one unit more can save. first_order: what the
plan's own replicas would carry more, at the price of a request; more patterns may become possible. relaxation: solved
again with the change, in fractions of GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A limit that keeps some of a service's replicas from carrying more where they are."""

    rule: Rule
    replicas: int
    """How many of them."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """How much of a GPU's limit is used."""

    rule: Rule
    used: float
    limit: float
    is_full: bool
    """Whether nothing more fits because of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earning:
    """What one replica carries and what that is worth at the relaxation's prices."""

    service: str
    sm_percent: float
    batch: int
    arrival_rate_rps: float
    capacity_rps: float
    earns: float
    """Price of a request × what it can carry of the service's rate, plus the price of its presence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another use of one GPU that was not chosen; replicas are given the rate that they could carry."""

    change: ChangeKind
    gpu_type: str
    clock_mhz: float
    replicas: tuple[ReplicaPlan, ...]
    price: float
    """What a GPU of it costs, energy included."""
    earns: float
    """What its replicas are worth at the prices."""
    loss: float
    """Price + what the stock is worth − earnings: by how much a plan gets dearer with it; ≥ 0 but for rounding."""

    @property
    def gpu(self) -> GpuPlan:
        """A GPU of it, as part of a plan."""
        return GpuPlan(
            gpu_type=self.gpu_type,
            clock_mhz=self.clock_mhz,
            replicas=self.replicas,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuExplanation:
    """Why some GPUs run what they run. Amounts are in `unit`, per hour and GPU where that is money."""

    gpu_type: str
    count: int
    clock_mhz: float
    unit: PriceUnit
    price: float
    """0 where the unit is not money: then GPUs are paid for anyway, or come first."""
    stock_price: float
    """What one more GPU of the type would save; using this one forgoes it."""
    replicas: tuple[Earning, ...]
    loss: float
    """Price + stock price − earnings; about 0 for what the relaxation would choose, more for what only fills up."""
    uses: tuple[LimitUse, ...]
    alternatives: tuple[Alternative, ...] = ()
    """Least loss first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """A limit, how it might be loosened, and what that would save."""

    kind: ReliefKind
    subject: str
    """The service or GPU type."""
    words: str
    """E.g. `SLO of chat 50 → 55 ms`."""
    saving: float
    """Per hour where the unit is money; how much more is served otherwise."""
    basis: Basis
