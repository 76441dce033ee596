"""Metrics of the control loop. The API's are in `app.api.metrics`; both names start with `plimsoll_`."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app.control.loop import TickOutcome

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LoopMetrics:
    """The loop's instruments on one registry. Steps and states are few and known."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ticks = Counter(
            "plimsoll_ticks", "Ticks by what they did; `held` where nothing was decided", ("state",), registry=registry
        )
        self._seconds = Histogram(
            "plimsoll_tick_step_seconds", "Time of one step of a tick", ("step",), buckets=SECONDS, registry=registry
        )
        self._generation = Gauge("plimsoll_target_generation", "Generation of the plan in force", registry=registry)
        self._cost = Gauge(
            "plimsoll_plan_cost_usd_per_hour", "Cost of the newest plan, by the solver's accounting", registry=registry
        )
        self._last = Gauge("plimsoll_last_tick_timestamp_seconds", "When the newest tick ended", registry=registry)

    def note(self, outcome: TickOutcome) -> None:
        """Count one tick."""
        self._ticks.labels(outcome.state or "held").inc()
        for step, seconds in outcome.seconds.items():
            self._seconds.labels(step).observe(seconds)
        self._generation.set(outcome.generation)
        if outcome.cost_usd_per_hour is not None:
            self._cost.set(outcome.cost_usd_per_hour)
        self._last.set_to_current_time()
