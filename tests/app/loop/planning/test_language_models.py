"""Language models in the loop: how GPUs lie on nodes, when services are sized, and GPUs that no one else gets."""

import asyncio
from dataclasses import replace

import pytest

from app.loop.make_problem import make_problem
from app.loop.planning.language_models import (
    max_tp,
    models_gpus,
    with_models,
    with_slots,
    without_broken_models,
    without_models,
)
from app.loop.planning.llm_rows import (
    NEW_PER_TICK,
    ModelRows,
    SizedModels,
    with_rows,
)
from app.solver.inline import InlineSolver
from app.solver.llm_rows import RowsAnswer, RowsRequest
from app.solver.process import SolverUnavailable
from app.store.store import Snapshot
from solvers.types.llm import (
    LlmEngineSettings,
    LlmPoints,
    LlmReplicaPlan,
    LlmRow,
    LlmTerms,
    ServedLengths,
    ServedModels,
    ServedSpeed,
    ServedStart,
)
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica, Plan
from solvers.types.state import (
    ClusterState,
    Demand,
    Gpu,
    GpuId,
    Mode,
    NodeId,
    ReplicaId,
    Service,
    Slo,
)
from tests.app.fleets import FAST, POINTS, SETTINGS, a_service
from tests.app.snapshots import a_snapshot, a_state


def model(name: str, **changes: object) -> Service:
    """A language model's service."""
    service = Service(
        name=name,
        network="llama",
        slo=Slo(latency_ms=1000.0, percentile=0.95),
        llm=LlmTerms(itl_ms=50.0),
    )
    return replace(service, **changes)  # type: ignore[arg-type]


def gpus_of(node: str, count: int, gpu_type: str = FAST.name) -> list[Gpu]:
    """Of one node."""
    return [
        Gpu(
            id=GpuId(f"{node}/gpu-{index}"),
            node=NodeId(node),
            gpu_type=gpu_type,
            index=index,
        )
        for index in range(count)
    ]


def state_of(*services: Service) -> ClusterState:
    """Those services on a node of four GPUs and one of a single one."""
    return a_state(services=services, gpus=[*gpus_of("n1", 4), *gpus_of("n2", 1)])


def row(tp: int) -> LlmRow:
    """One that carries five requests a second on each GPU."""
    return LlmRow(
        tp, 2048, 256, 100.0, FAST.clocks_mhz[-1], 5.0 * tp, 1000.0, 10.0, 60.0
    )


def sized(request: RowsRequest) -> RowsAnswer:
    """What fits on one and on two GPUs."""
    points = LlmPoints(
        service=request.service,
        gpu_type=FAST.name,
        network=request.network,
        provenance="predicted",
        rows=(row(1), row(2)),
    )
    return RowsAnswer(points=(points,))


class Counting(InlineSolver):
    """Remembers what it was asked; fails where it is told to."""

    def __init__(self) -> None:
        super().__init__(make_rows=sized)
        self.asked: list[str] = []
        self.fails = False

    async def size_model(self, request: RowsRequest) -> RowsAnswer:
        self.asked.append(request.service)
        if self.fails:
            raise SolverUnavailable("it was killed")
        return await super().size_model(request)


def snapshot_of(*services: Service, target: BoundPlan | None = None) -> Snapshot:
    return replace(a_snapshot(), state=state_of(*services), target=target)


def bound(*spans: tuple[str, ...], shared: str = "") -> BoundPlan:
    """Replicas of `chat` on these GPUs of node n1, and one of another service on a GPU of its own."""
    gpus = []
    for number, names in enumerate(spans):
        replica = BoundReplica(
            id=ReplicaId(f"chat-{number}"),
            service="chat",
            network="llama",
            sm_percent=100.0,
            batch=256,
            arrival_rate_rps=5.0,
            memory_mib=1000.0,
            llm=LlmEngineSettings(
                gpus=names,
                max_num_batched_tokens=2048,
                max_num_seqs=256,
                max_model_len=4096,
            ),
        )
        gpus += [
            BoundGpu(
                id=GpuId(name),
                node=NodeId("n1"),
                gpu_type=FAST.name,
                clock_mhz=FAST.clocks_mhz[-1],
                power_cap_w=FAST.power_cap_w,
                replicas=(replica,) if name == names[0] else (),
                held_by=None if name == names[0] else replica.id,
            )
            for name in names
        ]
    if shared:
        other = replace(gpus[0], id=GpuId(shared), replicas=(), held_by=None)
        gpus.append(other)
    return BoundPlan(generation=1, parent=0, policy="joint", gpus=tuple(gpus))


def test_slots_are_counted_node_by_node() -> None:
    usable = [*gpus_of("n1", 5), *gpus_of("n2", 3), *gpus_of("n3", 8, "other")]
    found = with_slots(FAST, usable)
    assert (found.gpus_per_node, found.free_slots) == (4, ((2, 3), (4, 1)))


@pytest.mark.parametrize(
    ("per_node", "expected"), [([], 1), ([1, 3], 2), ([8], 8), ([16], 8)]
)
def test_a_replica_spans_a_power_of_two_that_some_node_has(
    per_node: list[int], expected: int
) -> None:
    assert max_tp(per_node) == expected


def test_problems_without_language_models_say_nothing_of_nodes() -> None:
    made = make_problem(state_of(a_service()), (POINTS,), (), SETTINGS, target=None)
    assert made.gpu_types[0].free_slots == ()
    assert made.llm_services == ()


def test_a_model_has_its_demand_and_rows_and_is_no_other_service() -> None:
    made = make_problem(
        state_of(model("chat"), model("off", mode=Mode.OFF)),
        (POINTS,),
        (Demand(service="chat", arrival_rate_rps=7.0),),
        SETTINGS,
        target=None,
        llm_points=sized(_request("chat")).points + sized(_request("gone")).points,
    )
    (service,) = made.llm_services
    assert (service.name, service.arrival_rate_rps) == ("chat", 7.0)
    assert service.slo.ttft_ms == 1000.0
    assert [points.service for points in made.llm_points] == ["chat"]
    assert made.services == ()
    assert made.gpu_types[0].free_slots == ((2, 2), (4, 1))
    # A second of a start costs a GPU's second, spread over the ten minutes that a plan lasts.
    assert made.start_usd_per_second_and_gpu == pytest.approx(
        FAST.price_usd_per_hour / 600.0
    )


def _request(service: str) -> RowsRequest:
    return RowsRequest(
        service=service,
        network="llama",
        slo=model(service).token_slo,  # type: ignore[arg-type]
        terms=LlmTerms(itl_ms=50.0),
        gpu_types=(FAST,),
    )


def test_new_services_are_sized_a_few_per_tick_and_once() -> None:
    names = [f"m{number}" for number in range(NEW_PER_TICK + 1)]
    snapshot, solver, models = (
        snapshot_of(*map(model, names)),
        Counting(),
        SizedModels(),
    )
    first = asyncio.run(models.of(solver, snapshot))
    assert first.waiting == (names[-1],)
    left = {each.name for each in with_rows(snapshot, first).state.services}
    assert left == set(names[:-1])
    assert f"{names[-1]} is being sized for the next plans" in first.messages(
        Plan(policy="x")
    )
    second = asyncio.run(models.of(solver, snapshot))
    assert second.waiting == ()
    asyncio.run(models.of(solver, snapshot))
    assert solver.asked == names
    # What is sized already is planned with until there is time for its speeds.
    speeds = tuple(served(20.0)._replace(service=name) for name in names)
    sped = replace(snapshot, served=ServedModels(speeds=speeds))
    assert asyncio.run(models.of(solver, sped)).waiting == ()
    assert solver.asked == [*names, *names[:NEW_PER_TICK]]


def test_starts_take_as_long_as_they_did_lately() -> None:
    snapshot, models = snapshot_of(model("m1"), model("m2")), SizedModels()
    rows = asyncio.run(models.of(Counting(), snapshot))
    seen = ServedModels(starts=(ServedStart("m1", FAST.name, 321.0),))
    after = with_rows(replace(snapshot, served=seen), rows)
    before = with_rows(snapshot, rows)
    starts = {
        points.service: {row.start_s for row in points.rows}
        for points in after.llm_points
    }
    assert starts["m1"] == {321.0}
    # Of others and of GPU types on which none started nothing else is known.
    (unseen,) = (each for each in before.llm_points if each.service == "m2")
    assert starts["m2"] == {row.start_s for row in unseen.rows} != {321.0}


def test_a_price_changes_no_size_and_another_slo_does() -> None:
    solver, models = Counting(), SizedModels()
    snapshot = snapshot_of(model("chat"))
    asyncio.run(models.of(solver, snapshot))
    dearer = replace(FAST, price_usd_per_hour=99.0)
    asyncio.run(
        models.of(
            solver,
            replace(snapshot, state=replace(snapshot.state, gpu_types=(dearer,))),
        )
    )
    assert solver.asked == ["chat"]
    faster = model("chat", llm=LlmTerms(itl_ms=20.0))
    asyncio.run(models.of(solver, snapshot_of(faster)))
    assert solver.asked == ["chat", "chat"]


def served(itl_ms: float, sequences: float = 20.0) -> ServedSpeed:
    return ServedSpeed("chat", FAST.name, 1, 2048, sequences, itl_ms)


def test_speeds_are_sized_with_anew_when_they_or_the_load_are_others() -> None:
    solver, models = Counting(), SizedModels()
    snapshot = snapshot_of(model("chat"))

    def asked_with(*speeds: ServedSpeed) -> int:
        asyncio.run(
            models.of(solver, replace(snapshot, served=ServedModels(speeds=speeds)))
        )
        return len(solver.asked)

    assert asked_with() == 1
    assert asked_with(served(20.0)) == 2
    # As the same law says: more sequences at a time take longer.
    assert asked_with(served(21.0)) == 2
    assert asked_with(served(22.5, sequences=25.0)) == 2
    assert asked_with(served(25.0)) == 3
    assert asked_with(served(40.0, sequences=60.0)) == 4
    # Silence is no other speed.
    assert asked_with() == 4


def test_lengths_that_replicas_counted_are_sized_with_where_none_are_stated() -> None:
    learning = model("chat", llm=LlmTerms(itl_ms=50.0, learns_lengths=True))
    solver, models = Counting(), SizedModels()

    def asked_with(service: Service, *lengths: ServedLengths) -> int:
        snapshot = snapshot_of(service)
        served = ServedModels(lengths=lengths)
        asyncio.run(models.of(solver, replace(snapshot, served=served)))
        return len(solver.asked)

    long = ServedLengths("chat", 2000.0, 400.0, 0.3)
    assert asked_with(learning) == 1
    assert asked_with(learning, long) == 2
    # A few per cent are chance, and silence is no other length.
    assert asked_with(learning, long._replace(prompt=2100.0)) == 2
    assert asked_with(learning) == 2
    assert asked_with(learning, long._replace(output=500.0)) == 3
    assert asked_with(learning, long._replace(output=500.0, found_share=0.5)) == 4
    # What is stated is not asked of replicas.
    assert asked_with(model("chat")) == 5
    assert asked_with(model("chat"), long) == 5


def test_requests_that_are_longer_than_stated_are_said_with_the_remedy() -> None:
    def said(service: Service, prompt: float, output: float) -> tuple[str, ...]:
        counted = ServedLengths(service.name, prompt, output, 0.0)
        served = ServedModels(lengths=(counted,))
        snapshot = replace(snapshot_of(service), served=served)
        rows = asyncio.run(SizedModels().of(Counting(), snapshot))
        return rows.messages(Plan(policy="joint", gpus=()))

    stated = model("chat", llm=LlmTerms(itl_ms=50.0, prompt_tokens=800.0))
    (message,) = said(stated, 100_000.0, 200.0)
    assert message.startswith("chat: prompts of 100000 and answers of 200 tokens")
    assert "llm.lengths states 800 and 211: state longer ones" in message
    assert said(stated, 900.0, 220.0) == ()
    learning = model("chat", llm=LlmTerms(itl_ms=50.0, learns_lengths=True))
    assert said(learning, 100_000.0, 200.0) == ()


def test_the_plan_says_what_lengths_it_was_made_for() -> None:
    long = ServedLengths("chat", 2000.0, 400.0, 0.3)
    rows = ModelRows(answers={"chat": RowsAnswer(lengths=long)})
    replica = LlmReplicaPlan(
        service="chat",
        gpu_type=FAST.name,
        tp=1,
        clock_mhz=1000.0,
        max_num_batched_tokens=2048,
        max_num_seqs=256,
        arrival_rate_rps=1.0,
    )

    said = rows.messages(Plan(policy="joint", gpus=(), llm_replicas=(replica,)))

    assert said == (
        "chat: prompts of 2000 and answers of 400 tokens, as replicas counted them, 30 % of prompts cached already",
    )
    assert rows.messages(Plan(policy="joint", gpus=())) == ()


def test_where_sizing_fails_new_services_wait_and_nothing_is_decided_for_running_ones() -> (
    None
):
    solver = Counting()
    solver.fails = True
    rows = asyncio.run(SizedModels().of(solver, snapshot_of(model("chat"))))
    assert rows.waiting == ("chat",)
    running = snapshot_of(model("chat"), target=bound(("n1/gpu-0",)))
    with pytest.raises(SolverUnavailable):
        asyncio.run(SizedModels().of(solver, running))


def test_models_are_set_apart_and_come_back() -> None:
    target = bound(("n1/gpu-0", "n1/gpu-1"), shared="n1/gpu-3")
    assert models_gpus(target) == {"n1/gpu-0", "n1/gpu-1"}
    rest = without_models(target)
    assert [gpu.id for gpu in rest.gpus] == ["n1/gpu-3"]
    assert with_models(rest, target) == target


def test_a_replica_that_lost_a_gpu_is_lost_with_what_it_holds() -> None:
    target = bound(("n1/gpu-0", "n1/gpu-1"), ("n1/gpu-2",))
    left = replace(
        target, gpus=tuple(gpu for gpu in target.gpus if gpu.id != "n1/gpu-1")
    )
    found = without_broken_models(left)
    assert [[each.id for each in gpu.replicas] for gpu in found.gpus] == [
        [],
        ["chat-1"],
    ]
    held = replace(target, gpus=target.gpus[1:])
    assert without_broken_models(held).gpus[0].held_by is None
