"""The best that `k8s_hpa` can be set up for a load, with hindsight: each service's GPU type, parts and target.

Every trial is a run of the whole load, the same that the others face. First all services alike, at every GPU type,
number of parts and some targets, but where all of them pay more than elsewhere already: each service takes the cheapest
setting at which it kept its SLO, of all and of each number of parts. The best of these, or of the demo's settings, is
improved, one service and one step at a time, until no step is better.

What Kubernetes cannot choose is as it is for everybody: requests, launches, periods and the services' delay before
fewer replicas. A quarter of a GPU was not profiled, where Plimsoll's own policies do without; a pod that gets one is
interpolated between 20 and 30 % (`with_quarters`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.demo.baseline import TUNED_PODS, with_quarters
from app.simulate.run.closed_loop import ClusterPlan
from bench.closed_runs import ClosedRun, run_closed
from solvers.baselines.k8s_hpa import NAME, KubernetesHpa
from solvers.baselines.k8s_pods import PodOptions

PARTS = (1, 2, 4)
TARGETS = (1.2, 1.0, 0.8, 0.6)
"""Those at which all services are alike, falling: what they cost grows. A profiled capacity is under the SLO, so that a
replica may bear a little more."""
TARGET_STEP = 0.1
LOWEST_TARGET, HIGHEST_TARGET = 0.4, 1.6
KNOWN_PODS = (
    TUNED_PODS,
    {**TUNED_PODS, "resnet50": replace(TUNED_PODS["resnet50"], target=1.2)},
)
"""Settings that were found best on the demo's load, and on other seeds of it."""
MAX_STEPS = 60
"""Trials of one improvement; one that had not ended by then would be cut short, and says so."""

Pods = Mapping[str, PodOptions]
Trial = Callable[[Pods], ClosedRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedPods:
    """What the search found."""

    pods: Pods
    run: ClosedRun
    runs: int
    """Trials that it took."""
    is_complete: bool
    """Whether no step from there is better; False: it was cut short at MAX_STEPS."""


class KubernetesSearch:
    """Searches for settings; remembers every trial, so that a second search with another aim begins where one ended."""

    def __init__(
        self,
        trial: Trial,
        delays_s: Mapping[str, float],
        gpu_types: Sequence[str],
        known: Sequence[Pods] = (),
    ) -> None:
        """`delays_s`: by service, before it has fewer replicas. `known`: settings that are tried, too."""
        self._known = known
        self._trial, self._delays_s, self._gpu_types = trial, delays_s, gpu_types
        self._tried: dict[tuple[PodOptions, ...], ClosedRun] = {}
        self._services = sorted(delays_s)

    @property
    def runs(self) -> int:
        """Trials so far."""
        return len(self._tried)

    def best(self, required: Mapping[str, float]) -> TunedPods:
        """The cheapest settings found that give every service the attainment that it requires; where none do, those
        that come nearest to it."""
        alike = self._alike(required)
        # Steps of one service alone do not leave every local optimum: a search without the known settings once ended at
        # 1.08 USD where they cost 0.93, one from the demo's alone at 0.98.
        for pods in (*self._mixed(alike, required), *self._known):
            self._run(pods)
        return self.improved(self._leader(required), required)

    def improved(self, best: Pods, required: Mapping[str, float]) -> TunedPods:
        """What steps of one service from there lead to, until none is better."""
        limit = self.runs + MAX_STEPS
        while self.runs < limit:
            # The first better one is taken: the next round goes on from there.
            better = next(self._better(best, required, limit), None)
            if better is None:
                break
            best = better
        return TunedPods(
            pods=best,
            run=self._run(best),
            runs=self.runs,
            is_complete=self.runs < limit,
        )

    def _alike(self, required: Mapping[str, float]) -> list[tuple[Pods, ClosedRun]]:
        tried: list[tuple[Pods, ClosedRun]] = []
        for gpu_type in self._gpu_types:
            for parts in PARTS:
                for target in TARGETS:
                    option = PodOptions(gpu_type=gpu_type, parts=parts, target=target)
                    pods = self._pods(option)
                    tried.append((pods, self._run(pods)))
                    # A lower target costs no less, so that it would never be chosen here.
                    if self._is_beaten(tried, required):
                        break
        return tried

    def _pods(self, option: PodOptions) -> Pods:
        return {
            name: replace(option, scale_down_s=delay_s)
            for name, delay_s in self._delays_s.items()
        }

    def _is_beaten(
        self, tried: Sequence[tuple[Pods, ClosedRun]], required: Mapping[str, float]
    ) -> bool:
        """Whether every service pays more in the last trial than in another one that gives it what it requires."""
        *before, (_, last) = tried
        return all(
            any(
                run.attained[name] >= required[name]
                and run.bill.whole_gpu_usd[name] < last.bill.whole_gpu_usd[name]
                for _, run in before
            )
            for name in self._services
        )

    def _mixed(
        self, alike: Sequence[tuple[Pods, ClosedRun]], required: Mapping[str, float]
    ) -> Iterator[Pods]:
        """Each service at its own best: of all numbers of parts, and of each, since equal ones share GPUs."""
        for allowed in (PARTS, *((parts,) for parts in PARTS)):
            yield {
                name: min(
                    (
                        (_cost_of(name, run, required[name]), at, pods[name])
                        for at, (pods, run) in enumerate(alike)
                        if pods[name].parts in allowed
                    ),
                )[-1]
                for name in self._services
            }

    def _better(
        self, best: Pods, required: Mapping[str, float], limit: int
    ) -> Iterator[Pods]:
        rank = _rank(self._run(best), required)
        for name in self._services:
            for option in self._steps(best[name]):
                pods = {**best, name: option}
                if self.runs >= limit:
                    return
                if _rank(self._run(pods), required) < rank:
                    yield pods

    def _steps(self, pods: PodOptions) -> Iterator[PodOptions]:
        for target in (pods.target + TARGET_STEP, pods.target - TARGET_STEP):
            if LOWEST_TARGET <= round(target, 2) <= HIGHEST_TARGET:
                yield replace(pods, target=round(target, 2))
        for parts in PARTS:
            if parts != pods.parts:
                yield replace(pods, parts=parts)

    def _leader(self, required: Mapping[str, float]) -> Pods:
        # Of equals the first one tried.
        options, _ = min(self._tried.items(), key=lambda each: _rank(each[1], required))
        return dict(zip(self._services, options, strict=True))

    def _run(self, pods: Pods) -> ClosedRun:
        key = tuple(pods[name] for name in self._services)
        if key not in self._tried:
            self._tried[key] = self._trial(pods)
        return self._tried[key]


def _rank(run: ClosedRun, required: Mapping[str, float]) -> tuple[float, float]:
    """Attainment that is missing, summed over the services, then cost: less is better."""
    missing = sum(
        max(0.0, required[name] - share) for name, share in run.attained.items()
    )
    return missing, round(run.cost_usd, 6)


def _cost_of(name: str, run: ClosedRun, required: float) -> tuple[float, float]:
    """The same of one service, by its part of the bill."""
    missing = max(0.0, required - run.attained[name])
    return missing, run.bill.whole_gpu_usd.get(name, 0.0)


def run_pods(plan: ClusterPlan, duration_s: float, pods: Pods) -> ClosedRun:
    """A cluster's own load for `duration_s` under these settings."""
    profiled = replace(plan, points=with_quarters(plan.points))
    return run_closed(profiled, duration_s, {NAME: KubernetesHpa(pods=pods)})


def search(plan: ClusterPlan, duration_s: float) -> KubernetesSearch:
    """A search on a cluster's own load for `duration_s` of it."""

    def trial(pods: Pods) -> ClosedRun:
        return run_pods(plan, duration_s, pods)

    delays_s = {each.name: each.scaling.downscale_delay_s for each in plan.services}
    # The cheapest first: what is found there spares most trials of the others.
    gpu_types = sorted(
        plan.gpu_types, key=lambda each: (each.price_usd_per_hour, each.name)
    )
    return KubernetesSearch(
        trial, delays_s, [each.name for each in gpu_types], KNOWN_PODS
    )
