"""One stateful test of tasks in both stores: whatever targets, nodes, people and time do to them, they answer alike."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from agents.base.protocol import Observation, TaskReading, TaskState
from app.base.errors import Conflict
from app.db.workloads import tasks
from app.postgres import server as postgres
from app.store.store import Store
from app.store.task_book import Place
from solvers.types.plan import BoundGpu, BoundTask
from solvers.types.state import Gpu, GpuId, Node, NodeId, Task, Variant, gpu_id
from tests.examples import tried
from tests.integration.fleet import (
    START,
    make_bound,
    make_fleet,
    make_gpu_reading,
    make_gpu_type,
    make_observation,
    make_record,
)
from tests.integration.two_stores import TwoStores

pytestmark = pytest.mark.integration

NAMES = ("nightly", "vision")
"""What teams call them; when a name was deleted and is given again, plans say `nightly.2`."""
GPUS = (gpu_id("n1", 0), gpu_id("n1", 1))
SHARES = (100 / 7, 20.0)
TASK = Task(
    name="",
    kind="offline",
    network="resnet50",
    batch=8,
    iterations=1000,
    priority=10.0,
    weight=0.25,
    variants=(
        Variant(network="resnet50", accuracy=0.76),
        Variant(network="resnet18", accuracy=0.7),
    ),
    accuracy_floor=0.7,
    layers=(("conv", 53), ("linear", 1)),
    memory_mib=900.0,
)
STATES = st.sampled_from(
    ["starting", *["running"] * 4, "swapping", "swapped", "finished", "failed"]
)


class TaskStores(TwoStores):
    """Does everything that concerns tasks to a memory store and a PostgreSQL store."""

    @initialize()
    def open(self) -> None:
        self.postgres = self.run(make_fleet(self.engine, {}))
        self.memory.put_gpu_types([make_gpu_type()])
        gpus = [
            Gpu(id=gpu, node=NodeId("n1"), gpu_type="T4", index=index)
            for index, gpu in enumerate(GPUS)
        ]
        self.memory.put_node(Node(id=NodeId("n1")), gpus, at=START)
        self.now, self.sequence = START, 0
        self.listed, self.runs = dict[str, str](), dict[str, int]()
        for name in NAMES:
            self.task_is_submitted(name, None)
        assert self.run(self._push_both(dict.fromkeys(NAMES, (GPUS[0], SHARES[0]))))

    @rule(seconds=st.sampled_from([0.5, 2.0, 7.25, 200.0, 3601.5]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(name=st.sampled_from(NAMES), due_in_s=st.sampled_from([None, 60.5]))
    def task_is_submitted(self, name: str, due_in_s: float | None) -> None:
        if name in self.listed:
            return
        self.runs[name] = self.runs.get(name, 0) + 1
        self.listed[name] = (
            name if self.runs[name] == 1 else f"{name}.{self.runs[name]}"
        )
        noun = replace(TASK, name=name, due_in_s=due_in_s)
        self.memory.put_tasks([replace(noun, name=self.listed[name])], at=self.now)
        wanted = tasks.TaskSubmission(task=noun)
        assert (
            self.run(
                self.with_connection(tasks.save, wanted, at=self.now, actor="test")
            )
            == 1
        )

    @precondition(lambda self: self.listed)
    @rule(data=st.data(), is_deleted=st.booleans())
    def task_is_ended(self, data: st.DataObject, is_deleted: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.listed)))
        task_id = self.listed[name]
        is_finished = self.memory.tasks.records[task_id].finished_at is not None

        def in_database() -> None:
            self.run(
                self.with_connection(
                    tasks.remove if is_deleted else tasks.cancel, name, at=self.now
                )
            )

        def in_memory() -> None:
            self.memory.tasks.cancel(task_id, self.now)

        if is_deleted:
            del self.listed[name]
        assert _is_refused(in_memory) is is_finished
        assert _is_refused(in_database) is (is_finished and not is_deleted)

    @rule(data=st.data())
    def target_is_pushed(self, data: st.DataObject) -> None:
        """Each task somewhere or nowhere, also those that are over, and one that was never submitted."""
        ids = sorted({*self.memory.tasks.records, "stranger"})
        places = {
            each: data.draw(
                st.none() | st.tuples(st.sampled_from(GPUS), st.sampled_from(SHARES))
            )
            for each in ids
        }
        outcomes = [
            self.run(self._push(store, places))
            for store in (self.postgres, self.memory)
        ]
        assert outcomes == [True, True]

    @rule(data=st.data(), size=st.integers(1, 4))
    def node_reports(self, data: st.DataObject, size: int) -> None:
        batch = tuple(self._observation(data) for _ in range(size))
        for _ in range(2):  # again, as after a lost answer: nothing counts twice
            self.ingest(batch)

    @precondition(lambda self: self.listed)
    @rule(
        data=st.data(), is_taken_up=st.booleans(), done=st.sampled_from([1e3, 1e3, 7.0])
    )
    def task_ends_while_it_is_moved(
        self, data: st.DataObject, is_taken_up: bool, done: float
    ) -> None:
        """The node that it leaves says so, before or after its new place reports it."""
        name = self.listed[data.draw(st.sampled_from(sorted(self.listed)))]
        for gpu in GPUS:
            assert self.run(self._push_both({name: (gpu, SHARES[0])}))
        reports = [_progress(name, GPUS[0], "finished", done)]
        if is_taken_up:
            reports.insert(0, _progress(name, GPUS[1], "starting", 0.0))
        for reading in reports:
            self.sequence += 1
            seen = make_observation(self.sequence, self.now)
            batch = (msgspec.structs.replace(seen, tasks=(reading,)),)
            self.ingest(batch)

    @invariant()
    def both_answer_alike(self) -> None:
        one, other = (
            self.run(store.load_snapshot(self.now))
            for store in (self.postgres, self.memory)
        )
        assert one.state.tasks == other.state.tasks
        assert one.target == other.target
        records = [
            row.record for row in self.run(self.with_connection(tasks.list_rows))
        ]
        assert records == [
            self.memory.tasks.records[task_id]
            for _, task_id in sorted(self.listed.items())
        ]

    def _observation(self, data: st.DataObject) -> Observation:
        """Mostly of tasks where they are wanted, at times of others."""
        self.sequence += 1
        wanted = {
            each.task.name: each.place for each in self.memory.tasks.records.values()
        }
        absent = data.draw(
            st.sets(st.sampled_from([*sorted(wanted), "stranger"]), max_size=2)
        )
        names = [name for name in (*sorted(wanted), "stranger") if name not in absent]
        indices = data.draw(st.sampled_from([(0, 1), (0, 1), (0,), ()]))
        seen = make_observation(
            self.sequence, self.now, gpus=[make_gpu_reading(index) for index in indices]
        )
        return msgspec.structs.replace(
            seen, tasks=tuple(_reading(data, name, wanted.get(name)) for name in names)
        )

    async def _push_both(self, places: dict[str, Place | None]) -> bool:
        return await self._push(self.postgres, places) and await self._push(
            self.memory, places
        )

    async def _push(self, store: Store, places: dict[str, Place | None]) -> bool:
        snapshot = await store.load_snapshot(self.now)
        bound = make_bound(snapshot.target.generation if snapshot.target else 0, {})
        bound = replace(
            bound,
            gpus=tuple(
                filter(lambda gpu: gpu.tasks, (_host(gpu, places) for gpu in GPUS))
            ),
        )
        plan_id = await store.record_plan(
            make_record(self.now, bound, snapshot.state.catalogue_revision)
        )
        return await store.push_target(plan_id, bound, (), self.now)


def _host(gpu: GpuId, places: dict[str, Place | None]) -> BoundGpu:
    return BoundGpu(
        id=gpu,
        node=NodeId("n1"),
        gpu_type="T4",
        clock_mhz=1000.0,
        power_cap_w=70.0,
        replicas=(),
        tasks=tuple(
            BoundTask(
                name=name,
                kind="offline",
                network="resnet50",
                batch=8,
                sm_percent=place[1],
                memory_mib=900.5,
                iterations=1000,
                done_iterations=1 / 3,
                is_resident=number % 2 == 0,
            )
            for number, (name, place) in enumerate(sorted(places.items()))
            if place is not None and place[0] == gpu
        ),
    )


def _reading(data: st.DataObject, name: str, wanted: Place | None) -> TaskReading:
    here = (
        wanted
        if wanted is not None and data.draw(st.integers(0, 4))
        else (GPUS[1], SHARES[1])
    )
    return TaskReading(
        name=name,
        gpu_index=GPUS.index(here[0]),
        state=data.draw(STATES),
        sm_percent=here[1],
        batch=data.draw(st.sampled_from([8, 8, 8, 16])),
        done_iterations=data.draw(st.sampled_from([0.0, 1 / 3, 40.5, 1000.0])),
        iteration_ms=data.draw(st.sampled_from([0.0, 12.3, 50.0])),
    )


def _progress(name: str, gpu: GpuId, state: TaskState, done: float) -> TaskReading:
    return TaskReading(
        name=name,
        gpu_index=GPUS.index(gpu),
        state=state,
        sm_percent=SHARES[0],
        batch=8,
        done_iterations=done,
    )


def _is_refused(act: Callable[[], None]) -> bool:
    try:
        act()
    except Conflict:
        return True
    return False


@pytest.mark.seeded
def test_both_stores_know_the_same_of_tasks(
    postgres_server: postgres.Server, migrated_template: str
) -> None:
    TaskStores.check(postgres_server, migrated_template, examples=tried(8), steps=15)
