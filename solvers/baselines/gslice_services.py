"""What `gslice` plans with: the shares that a service may step through on each GPU type, and the replicas it wants."""

from collections.abc import Mapping
from dataclasses import dataclass

from solvers.baselines.gslice_tuning import Tuning
from solvers.baselines.half_slo import SoloProfile, max_replicas, replicas_for
from solvers.greedy.configure import MAX_REPLICAS
from solvers.types.problem import OperatingPoint, ServiceDemand

STEP_PERCENT = 10.0
"""Shares that are tried lie at least this far apart."""

FRESH = Tuning()
"""A service that was never tuned stands at the knee."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLadder:
    """One service on one GPU type: the shares that tuning goes through."""

    profile: SoloProfile
    shares: tuple[float, ...]
    """SM percents, ascending."""
    knee: int
    """Where it starts among them."""

    @property
    def gpu_type(self) -> str:
        return self.profile.gpu_type.name

    def share(self, steps: int) -> float:
        """The share `steps` from the knee, as far as shares go."""
        return self.shares[min(max(0, self.knee + steps), len(self.shares) - 1)]

    def rate_rps(self, steps: int) -> float:
        """What a replica of that share serves alone."""
        return self.profile.rates_rps[self.share(steps)]

    def row(self, steps: int) -> OperatingPoint:
        """The operating row of that share."""
        row = self.profile.largest_batch(self.share(steps))
        # Shares come from `rates_rps`, which leaves out those that no batch can use.
        assert row is not None, "a share that serves nothing is among those to try"
        return row


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSlices:
    """One service's replicas while the plan is made."""

    service: ServiceDemand
    ways: tuple[ShareLadder, ...]
    """In order of preference: where it runs, then by cost."""
    running: Mapping[str, int]
    """Replicas by GPU type."""
    tuning: Tuning = FRESH

    @property
    def extra_replicas(self) -> int:
        """What the steps beyond the widest share come to."""
        first = self.ways[0]
        return max(0, first.knee + self.tuning.steps - (len(first.shares) - 1))


@dataclass(slots=True, kw_only=True)
class ReplicaWant:
    """The replicas that a service still wants while they are counted."""

    left_rps: float
    extra: int
    """Replicas beyond the rate's need: the steps beyond the widest share."""
    min_replicas: int
    max_replicas: int

    def ask(self, rate_rps: float) -> int:
        """How many replicas that serve so much it would take."""
        needed = replicas_for(self.left_rps, rate_rps) + self.extra
        return min(max(needed, self.min_replicas), self.max_replicas)

    def get(self, rate_rps: float, replicas: int) -> None:
        """Count replicas that it has got."""
        # Those that the rate needs count for it first: only the others make up for the extra ones.
        beyond = max(0, replicas - replicas_for(self.left_rps, rate_rps))
        self.extra = max(0, self.extra - beyond)
        self.left_rps = max(0.0, self.left_rps - replicas * rate_rps)
        self.min_replicas = max(0, self.min_replicas - replicas)
        self.max_replicas -= replicas


def share_ladder(profile: SoloProfile) -> ShareLadder:
    """The shares to step through from the knee, STEP_PERCENT or more apart, and the widest and narrowest."""
    # In both directions from the knee, where tuning begins, so that it is one of the shares.
    knee = profile.knee_percent
    wider, narrower = [knee], [knee]
    for percent in sorted(profile.rates_rps):
        if percent >= wider[-1] + STEP_PERCENT:
            wider.append(percent)
    for percent in sorted(profile.rates_rps, reverse=True):
        if percent <= narrower[-1] - STEP_PERCENT:
            narrower.append(percent)
    # The ends are shares to try, however near they are to the last step.
    ends = {min(profile.rates_rps), max(profile.rates_rps)}
    shares = tuple(sorted({*wider, *narrower, *ends}))
    return ShareLadder(profile=profile, shares=shares, knee=shares.index(knee))


def knee_usd_per_hour(service: ServiceDemand, way: ShareLadder) -> float:
    """The price of the parts of GPUs that the service takes at the knee."""
    replicas = max(1, replicas_for(service.arrival_rate_rps, way.rate_rps(0)))
    return replicas * way.share(0) / 100.0 * way.profile.gpu_type.price_usd_per_hour


def replica_want(one: ServiceSlices) -> ReplicaWant:
    """The replicas that a service wants before any is counted."""
    service = one.service
    return ReplicaWant(
        left_rps=service.arrival_rate_rps,
        extra=one.extra_replicas if one.ways else 0,
        min_replicas=service.min_replicas,
        max_replicas=max_replicas(service, MAX_REPLICAS),
    )
