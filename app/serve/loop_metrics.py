"""Metrics of the control loop. The API's own are in `app.api.caches.request_metrics`, the cluster's in
`app.api.caches.cluster_metrics`.

All names start with `plimsoll_`; docs/metrics.md lists them.
"""

from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app.loop.tick import TickOutcome
from solvers.types.outcome import PlanReport

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

MAX_SOLVES = 64
"""Combinations of problem, solver and status that are told apart; what is beyond counts as OTHERS."""
OTHERS = "(others)"

SolveLabels: TypeAlias = tuple[str, str, str]
"""Problem, solver, status."""


class LoopMetrics:
    """The loop's instruments on one registry. Steps, states, policies and rules are few and known."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._ticks = Counter(
            "plimsoll_ticks",
            "Ticks by what they did; `held` where nothing was decided",
            ("state",),
            registry=registry,
        )
        self._seconds = Histogram(
            "plimsoll_tick_step_seconds",
            "Time of one step of a tick",
            ("step",),
            buckets=SECONDS,
            registry=registry,
        )
        self._held = self._gauge(
            "loop_held",
            "1 while ticks decide nothing, because of telemetry or the operator",
        )
        self._generation = self._gauge(
            "target_generation", "Generation of the plan in force"
        )
        self._last = self._gauge(
            "last_tick_timestamp_seconds", "When the newest tick ended"
        )
        self._plan = _PlanMetrics(registry)

    def note(self, outcome: TickOutcome) -> None:
        """Count one tick."""
        self._ticks.labels(outcome.state or "held").inc()
        for step, seconds in outcome.seconds.items():
            self._seconds.labels(step).observe(seconds)
        # The state is None exactly where the loop held; a plan that was kept is a decision.
        self._held.set(outcome.state is None)
        self._generation.set(outcome.generation)
        self._plan.note(outcome)
        self._last.set_to_current_time()

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"plimsoll_{name}", text, registry=self._registry)


class _PlanMetrics:
    """What plans cost, how good they are, and how their solvers did."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._cost = self._gauge(
            "plan_cost_usd_per_hour",
            "Cost of the newest plan, by the solver's accounting",
        )
        self._bound = self._gauge(
            "plan_lower_bound_usd_per_hour",
            "Proven bound of that cost; absent without one",
        )
        self._gap = self._gauge(
            "plan_gap_ratio", "Distance of that cost from its bound; absent without one"
        )
        self._unserved = self._gauge(
            "plan_unserved_requests_per_second",
            "Demand that the newest plan leaves out",
        )
        self._plans = self._counter(
            "plans",
            "Plans by how good their solver says they are",
            ("policy", "status"),
        )
        self._fallbacks = self._counter(
            "solver_fallbacks", "Solves that gave no solution", ("problem", "status")
        )
        self._violations = self._counter(
            "violations", "Rules that plans broke", ("rule", "severity")
        )
        self._solves = Histogram(
            "plimsoll_solver_seconds",
            "Time of one solve, by problem, solver and how it ended",
            ("problem", "solver", "status"),
            buckets=SECONDS,
            registry=registry,
        )
        self._seen: set[SolveLabels] = set()

    def note(self, outcome: TickOutcome) -> None:
        """Count the decision of one tick, if it made one."""
        if outcome.cost_usd_per_hour is not None:
            self._cost.labels(outcome.policy).set(outcome.cost_usd_per_hour)
            self._forget_others(outcome.policy)
        if outcome.report is None:
            return
        report = outcome.report
        self._plans.labels(outcome.policy, report.status).inc()
        self._unserved.labels(outcome.policy).set(outcome.unserved_rps)
        self._set_or_clear(self._bound, outcome.policy, report.lower_bound_usd_per_hour)
        gap = report.gap_percent
        self._set_or_clear(
            self._gap, outcome.policy, None if gap is None else gap / 100.0
        )
        for violation in outcome.violations:
            self._violations.labels(violation.rule, violation.severity).inc()
        self._note_solves(report)

    def _note_solves(self, report: PlanReport) -> None:
        for step in report.steps:
            # Of groups, each planned by its own policy, the name comes first: `batch: autoscale`.
            problem = step.technique.rpartition(": ")[2]
            labels = self._bounded((problem, step.method, str(step.status)))
            self._solves.labels(*labels).observe(step.seconds)
            if not step.status.has_solution:
                self._fallbacks.labels(problem, str(step.status)).inc()

    def _bounded(self, labels: SolveLabels) -> SolveLabels:
        # The status stays: how many solves fail must be right even where it is not known which.
        if labels not in self._seen and len(self._seen) >= MAX_SOLVES:
            return OTHERS, OTHERS, labels[2]
        self._seen.add(labels)
        return labels

    def _forget_others(self, policy: str) -> None:
        """A policy that no longer decides has no newest plan."""
        for gauge in (self._cost, self._bound, self._gap, self._unserved):
            # Collected before any is removed: the gauge must not change under its own iterator.
            samples = [each for metric in gauge.collect() for each in metric.samples]
            for other in {sample.labels["policy"] for sample in samples} - {policy}:
                gauge.remove(other)

    @staticmethod
    def _set_or_clear(gauge: Gauge, policy: str, value: float | None) -> None:
        # Without a bound the old one must go: it would be read as that of the newest plan.
        if value is None:
            gauge.clear()
        else:
            gauge.labels(policy).set(value)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"plimsoll_{name}", text, ("policy",), registry=self._registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"plimsoll_{name}", text, labels, registry=self._registry)
