"""Learning from a store: what is read when, what planning takes over, and what is told."""

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import pytest

from agents.base.protocol import Observation, ReplicaReading
from app.base.clock import ManualControlClock
from app.learn.corrections import (
    FALL_AFTER_S,
    FORGET_AFTER_S,
    MAX_GPUS,
    PERIOD_S,
    LearnOutcome,
    OnlineLearner,
    learn_once,
    some_of,
)
from app.loop.make_problem import PlannedPoints
from app.store.memory_store import MemoryStore
from app.store.store import FitHealth, PlanRecord, PolicySettings
from solvers.predict.learn.online import row_beliefs
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundPlan, Plan
from tests.app.fleets import FAST, POINTS, SETTINGS, a_node, a_service
from tests.app.snapshots import a_bound_plan, a_replica

STATED_MS = 10.0
REPORT_S = 2.0


@dataclass
class Scene:
    """One node whose replica executes at a pace that the test gives, around a store in memory."""

    settings: PolicySettings = SETTINGS
    latency_sigma: float = 0.0
    clock: ManualControlClock = field(default_factory=ManualControlClock)
    sequence: int = 0
    outcomes: list[LearnOutcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MemoryStore(settings=self.settings)
        self.store.put_gpu_types([FAST])
        self.store.put_node(*a_node("n1"))
        self.store.put_services([a_service()])
        self.store.put_points([POINTS], latency_sigma=self.latency_sigma)
        self.push(a_bound_plan([a_replica("r1")]))
        self.learner = OnlineLearner(store=self.store, clock=self.clock)

    def push(self, bound: BoundPlan) -> None:
        snapshot = asyncio.run(self.store.load_snapshot(self.clock.now()))
        record = PlanRecord(
            at=self.clock.now(),
            state="proposed",
            policy_version=1,
            catalogue_revision=snapshot.state.catalogue_revision,
            plan=Plan(policy="test"),
            report=PlanReport(status="greedy", cost_usd_per_hour=2.0),
            bound=bound,
            problem=None,
        )
        plan_id = asyncio.run(self.store.record_plan(record))
        assert asyncio.run(self.store.push_target(plan_id, bound, (), self.clock.now()))

    def play(self, seconds: float, factor: float = 1.0) -> None:
        """The agent reports every REPORT_S, and what it said is learned every PERIOD_S."""
        for _ in range(round(seconds / PERIOD_S)):
            for _ in range(round(PERIOD_S / REPORT_S)):
                self.clock.advance(REPORT_S)
                asyncio.run(self.store.ingest((self.report(factor),), self.clock.now()))
            self.outcomes.append(asyncio.run(learn_once(self.learner)))

    def report(self, factor: float) -> Observation:
        self.sequence += 1
        reading = ReplicaReading(
            id="r1",
            service="chat",
            gpu_index=0,
            state="ready",
            sm_percent=50.0,
            batch=1,
            memory_mib=4000.0,
            batches=50,
            requests=50,
            execution_ms=STATED_MS * factor,
        )
        return Observation(
            node="n1",
            boot="b",
            sequence=self.sequence,
            window_start_s=self.clock.now_s() - REPORT_S,
            window_s=REPORT_S,
            generation=1,
            replicas=(reading,),
        )

    @property
    def health(self) -> FitHealth:
        (row,) = asyncio.run(self.store.load_fit_health())
        return row

    @property
    def planned_ms(self) -> tuple[float, float]:
        """Planned times of the served row and of the other one, stated as 10 and 5 ms."""
        snapshot = asyncio.run(self.store.load_snapshot(self.clock.now()))
        (points,) = PlannedPoints().of(snapshot)
        return points.rows[0].solo_ms, points.rows[1].solo_ms


def test_slower_than_stated_is_planned_within_two_minutes() -> None:
    scene = Scene()
    scene.play(120.0, factor=1.3)
    assert scene.planned_ms[0] == pytest.approx(13.0, rel=0.03)
    assert 5.0 < scene.planned_ms[1] < 6.5


def test_faster_than_stated_is_believed_slowly_and_never_fully() -> None:
    scene = Scene()
    scene.play(50.0, factor=0.8)
    early = scene.planned_ms[0]
    scene.play(120.0, factor=0.8)
    assert 8.0 < scene.planned_ms[0] < early < 10.0
    falls = {row.planned.at for outcome in scene.outcomes for row in outcome.changed}
    assert all(
        (later - sooner).total_seconds() >= FALL_AFTER_S
        for sooner in falls
        for later in falls
        if later > sooner
    )


def test_unsure_points_start_wide_and_narrow_as_they_are_served() -> None:
    scene = Scene(latency_sigma=0.25)
    wide = scene.planned_ms[0]
    scene.play(180.0)
    assert wide == pytest.approx(13.8, abs=0.1)
    assert scene.planned_ms[0] < 11.0
    assert scene.planned_ms[1] > 5.5


def test_what_is_learned_outlives_the_process() -> None:
    scene = Scene()
    scene.play(100.0, factor=1.3)
    before = scene.health
    scene.learner = OnlineLearner(store=scene.store, clock=scene.clock)
    assert asyncio.run(learn_once(scene.learner)) == LearnOutcome()
    assert scene.health == before
    scene.play(60.0, factor=1.3)
    assert scene.health.now.readings > before.now.readings


def test_a_period_is_read_once_also_after_a_restart_and_when_it_is_sent_again() -> None:
    scene = Scene()
    scene.play(60.0, factor=1.2)
    before = scene.health
    again = msgspec.structs.replace(scene.report(5.0), sequence=1)
    asyncio.run(scene.store.ingest((again,), scene.clock.now()))
    settled = scene.learner.settled
    scene.learner = OnlineLearner(store=scene.store, clock=scene.clock, settled=settled)
    assert asyncio.run(learn_once(scene.learner)).changed == ()
    assert scene.health == before


def test_a_gpu_says_nothing_of_the_time_before_its_settings() -> None:
    scene = Scene()
    scene.play(30.0)
    readings = scene.health.now.readings
    scene.push(
        a_bound_plan(
            [replace(a_replica("r1"), batch=1, sm_percent=50.0)],
            generation=2,
            clock_mhz=999.0,
        )
    )
    scene.play(10.0)
    assert scene.health.now.readings == readings


def test_new_operating_points_start_anew() -> None:
    scene = Scene()
    scene.play(60.0, factor=1.3)
    scene.store.put_points([replace(POINTS, sensitivity=0.1)])
    assert scene.planned_ms == (10.0, 5.0)
    assert asyncio.run(scene.store.load_fit_health()) == ()


def test_nothing_is_learned_where_the_operator_does_not_want_it() -> None:
    scene = Scene(settings=replace(SETTINGS, learning=False))
    scene.play(60.0, factor=1.3)
    assert all(outcome == LearnOutcome() for outcome in scene.outcomes)
    learned = Scene()
    learned.play(60.0, factor=1.3)
    learned.store.settings = replace(SETTINGS, learning=False)
    assert learned.planned_ms == (10.0, 5.0)


def test_nothing_is_learned_under_a_governor_whose_clocks_and_batches_are_not_the_plans() -> (
    None
):
    scene = Scene()
    scene.push(replace(a_bound_plan([a_replica("r1")], generation=2), governor="dfs"))
    scene.play(60.0, factor=1.3)
    assert all(outcome == LearnOutcome() for outcome in scene.outcomes)


def test_a_drift_is_told_when_it_begins_and_when_it_is_over() -> None:
    scene = Scene()
    scene.play(100.0)
    scene.play(50.0, factor=1.5)
    assert scene.health.now.is_alarmed
    assert scene.planned_ms[0] > 15.0
    scene.play(80.0, factor=1.5)
    assert not scene.health.now.is_alarmed
    assert scene.planned_ms[0] == pytest.approx(15.0, rel=0.04)
    assert [(event.kind, event.subject) for event in scene.store.events] == [
        ("FitDrifted", "network/net"),
        ("FitRecovered", "network/net"),
    ]


def test_the_catalogue_that_changed_meanwhile_keeps_what_it_knows() -> None:
    scene = Scene()
    scene.play(60.0)
    before = scene.health
    assert not asyncio.run(scene.store.save_fit_health((before,), catalogue_revision=0))


def test_planned_points_stay_the_same_objects_while_nothing_changes() -> None:
    scene = Scene(latency_sigma=0.1)
    scene.play(60.0)
    planned = PlannedPoints()
    one, other = (
        planned.of(asyncio.run(scene.store.load_snapshot(scene.clock.now())))[0]
        for _ in range(2)
    )
    assert one is other
    scene.store.settings = replace(SETTINGS, fit_quantile=0.99)
    wider = planned.of(asyncio.run(scene.store.load_snapshot(scene.clock.now())))[0]
    assert wider.rows[0].solo_ms > one.rows[0].solo_ms


def test_what_was_learned_is_forgotten_when_plans_stayed_away_for_a_day() -> None:
    scene = Scene()
    scene.play(120.0, factor=1.5)
    slow_ms = scene.planned_ms[0]
    scene.clock.advance(FORGET_AFTER_S)
    asyncio.run(learn_once(scene.learner))
    assert (
        scene.planned_ms[0] == slow_ms
    )  # it is planned; that it is not reported says nothing
    scene.push(replace(a_bound_plan([]), generation=2, parent=1))
    outcome = asyncio.run(learn_once(replace(scene.learner, read_until_s=0.0)))
    assert [event.kind for event in outcome.events] == ["FitForgotten"]
    assert scene.planned_ms == (10.0, 5.0)
    scene.clock.advance(2 * FORGET_AFTER_S)
    assert asyncio.run(learn_once(scene.learner)).changed == ()


def test_of_two_leaders_the_one_that_read_further_is_believed() -> None:
    scene = Scene()
    scene.play(60.0, factor=1.2)
    early = scene.health
    scene.play(30.0, factor=1.2)
    late = scene.health
    snapshot = asyncio.run(scene.store.load_snapshot(scene.clock.now()))
    assert asyncio.run(
        scene.store.save_fit_health((early,), snapshot.state.catalogue_revision)
    )
    assert scene.health == late


def test_a_large_fleet_is_looked_at_in_turn() -> None:
    gpus = a_bound_plan(
        *([a_replica(f"r{number}")] for number in range(2 * MAX_GPUS + 1))
    ).gpus
    for every in (1, 6):  # each round, and those in which samples are made
        rounds = [some_of(gpus, PERIOD_S * every * number) for number in range(30)]
        assert max(map(len, rounds)) <= MAX_GPUS
        turns = Counter(gpu.id for seen in rounds for gpu in seen)
        assert (
            len(turns) == len(gpus)
            and min(turns.values()) >= 8
            and max(turns.values()) <= 12
        )
    assert some_of(gpus[:7], 0.0) == list(gpus[:7])


def test_served_conditions_become_samples_now_and_then() -> None:
    scene = Scene()
    scene.play(150.0, factor=1.2)
    (row,) = scene.store.samples
    assert (row.network, row.source) == ("net", "served")
    assert row.latency_ms == pytest.approx(12.0)


def test_the_belief_is_about_the_row_that_was_served() -> None:
    scene = Scene()
    scene.play(120.0, factor=1.3)
    keys = [*scene.health.now.belief.rows]
    mean, _, _ = row_beliefs(scene.health.now, keys, np.zeros(len(keys)))
    assert mean[0] == pytest.approx(math.log(1.3), abs=0.02)
