"""Language models on physical GPUs: sets of one node, kept where they run, packed so that large ones find room."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.tick.bind import Bound, bind
from solvers.types.errors import InvalidInput
from solvers.types.llm import LlmReplicaPlan, LlmTerms
from solvers.types.plan import BoundPlan, Plan, anonymous
from solvers.types.problem import Problem
from solvers.types.state import Gpu, GpuId, Node, NodeId
from solvers.types.survival import LossKind, SurvivalGoal
from tests.solvers.llm.models import (
    CLOCK_MHZ,
    make_points,
    make_problem,
    make_row,
    make_service,
)

TERMS = {name: LlmTerms(itl_ms=50.0) for name in ("chat", "code")}
ROWS = tuple(make_row(tp, 5.0 * tp) for tp in (1, 2, 4, 8))


def problem() -> Problem:
    """Two services that may span 1, 2, 4 or 8 GPUs."""
    return make_problem(
        llm_services=tuple(map(make_service, TERMS)),
        llm_points=tuple(make_points(name, rows=ROWS) for name in TERMS),
    )


def fleet(*sizes: int) -> tuple[list[Gpu], list[Node]]:
    """Nodes n0, n1, … with `sizes` GPUs each."""
    nodes = [Node(id=NodeId(f"n{number}")) for number in range(len(sizes))]
    gpus = [
        Gpu(
            id=GpuId(f"{node.id}/gpu-{index}"),
            node=node.id,
            gpu_type="H100",
            index=index,
        )
        for node, size in zip(nodes, sizes, strict=True)
        for index in range(size)
    ]
    return gpus, nodes


def plan(*spans: int, service: str = "chat", budget: int = 1024) -> Plan:
    """A replica per number, which is the GPUs that it spans."""
    replicas = (
        LlmReplicaPlan(
            service=service,
            gpu_type="H100",
            tp=tp,
            clock_mhz=CLOCK_MHZ,
            max_num_batched_tokens=budget,
            max_num_seqs=256,
            arrival_rate_rps=1.0,
        )
        for tp in spans
    )
    return Plan(policy="joint", llm_replicas=tuple(replicas))


def bound(
    wanted: Plan,
    where: tuple[Sequence[Gpu], Sequence[Node]],
    running: BoundPlan | None = None,
    goal: SurvivalGoal | None = None,
    **more: object,
) -> Bound:
    """It on that fleet."""
    generation = 1 if running is None else running.generation + 1
    return bind(
        replace(problem(), survival=(goal,) if goal else ()),
        wanted,
        *where,
        running=running,
        generation=generation,
        llm_terms=TERMS,
        **more,  # type: ignore[arg-type]
    )


def spans(found: Bound) -> list[tuple[str, ...]]:
    """The GPUs of each replica."""
    return sorted(
        each.llm.gpus
        for gpu in found.plan.gpus
        for each in gpu.replicas
        if each.llm is not None
    )


def test_a_replica_stands_on_one_gpu_and_holds_the_others_of_its_node() -> None:
    found = bound(plan(4), fleet(2, 4))
    (first, *others) = found.plan.gpus
    (replica,) = first.replicas
    assert replica.llm is not None
    assert replica.llm.gpus == tuple(f"n1/gpu-{index}" for index in range(4))
    assert [gpu.held_by for gpu in others] == [replica.id] * 3
    assert anonymous(found.plan).llm_replicas == plan(4).llm_replicas
    assert anonymous(found.plan).gpus == ()


def test_small_ones_fill_nodes_that_are_in_parts_so_that_whole_ones_stay() -> None:
    where = fleet(8, 8)
    running = bound(plan(2), where).plan
    found = bound(plan(2, 2, 8), where, running)
    assert found.unplaced == ()
    nodes = {gpus[0].split("/")[0] for gpus in spans(found) if len(gpus) == 2}
    assert len(nodes) == 1


def test_no_node_has_all_of_a_service_where_there_are_others() -> None:
    where = fleet(8, 8, 8)
    for count in (2, 3, 6):
        nodes = Counter(gpus[0][:2] for gpus in spans(bound(plan(*[2] * count), where)))
        # Half of them at most, and as few nodes as that allows.
        assert max(nodes.values()) == -(-count // 2)
        assert len(nodes) == 2


def a_goal(
    needed_rps: float, *, loss: LossKind = "node", is_asked: bool = True
) -> SurvivalGoal:
    """What must be left of `chat`, whose replicas are planned for 1 rps each."""
    return SurvivalGoal(
        service="chat",
        loss=loss,
        share=1.0,
        needed_rps=needed_rps,
        is_asked=is_asked,
    )


def per_node(found: Bound) -> list[int]:
    """Replicas of each node that has any."""
    counts = Counter(gpus[0].split("/")[0] for gpus in spans(found))
    return sorted(counts.values())


def test_a_service_that_must_survive_a_node_is_spread_over_all_of_them() -> None:
    wanted = plan(*[2] * 5)
    assert per_node(bound(wanted, fleet(8, 8, 8))) == [2, 3]
    assert per_node(bound(wanted, fleet(8, 8, 8), goal=a_goal(3.0))) == [1, 2, 2]
    # Only a goal that was asked for counts.
    default = a_goal(3.0, is_asked=False)
    assert per_node(bound(wanted, fleet(8, 8, 8), goal=default)) == [2, 3]
    # The others stand as they would without it.
    others = plan(2, 2, 2, service="code")
    assert per_node(bound(others, fleet(8, 8, 8), goal=a_goal(3.0))) == [1, 2]


def test_a_service_that_must_survive_a_zone_is_spread_over_zones() -> None:
    gpus, nodes = fleet(8, 8, 8)
    zones = ("east", "east", "west")
    nodes = [replace(node, zone=zone) for node, zone in zip(nodes, zones, strict=True)]
    found = bound(plan(2, 2, 2, 2), (gpus, nodes), goal=a_goal(2.0, loss="zone"))
    west = [each for each in spans(found) if each[0].startswith("n2/")]
    assert len(west) == 2


def test_what_runs_moves_to_free_gpus_where_a_loss_would_take_too_much() -> None:
    where = fleet(8, 8, 8)
    running = bound(plan(2, 2, 2, 2), where).plan
    # Two of four are left whichever node is lost; three must be.
    again = bound(plan(2, 2, 2, 2), where, running, goal=a_goal(2.0))
    assert spans(again) == spans(bound(plan(2, 2, 2, 2), where, running))
    moved = bound(plan(2, 2, 2, 2), where, running, goal=a_goal(3.0))
    assert per_node(moved) == [1, 1, 2]
    # Then they stay, though a loss takes too much still.
    stays = bound(plan(2, 2, 2, 2), where, moved.plan, goal=a_goal(3.0))
    assert spans(stays) == spans(moved)
    before = {each.id for gpu in moved.plan.gpus for each in gpu.replicas}
    after = {each.id for gpu in stays.plan.gpus for each in gpu.replicas}
    assert after == before


def test_nothing_moves_where_no_gpus_are_free() -> None:
    where = fleet(8, 2)
    running = bound(
        Plan(
            policy="joint",
            llm_replicas=(
                *plan(2, 2, 2).llm_replicas,
                *plan(2, service="code").llm_replicas,
            ),
        ),
        where,
    ).plan
    same = bound(anonymous(running), where, running, goal=a_goal(3.0))
    assert spans(same) == sorted(
        each.llm.gpus for gpu in running.gpus for each in gpu.replicas if each.llm
    )


def test_who_stays_of_too_many_is_on_as_many_nodes_as_before() -> None:
    where = fleet(8, 8)
    running = bound(plan(2, 2, 2), where).plan
    assert [gpus[0][:2] for gpus in spans(bound(plan(2, 2), where, running))] == [
        "n0",
        "n1",
    ]


def ids(found: Bound) -> set[str]:
    """Of all replicas."""
    return {each.id for gpu in found.plan.gpus for each in gpu.replicas}


def test_what_is_wanted_again_comes_back_to_its_gpus_under_its_name() -> None:
    where = fleet(8, 8)
    three = bound(plan(2, 2, 2), where)
    two = bound(plan(2, 2), where, three.plan)
    again = bound(plan(2, 2, 2), where, two.plan)

    assert ids(again) == ids(three)
    assert spans(again) == spans(three)


def test_what_runs_stays_and_only_another_engine_is_started_anew() -> None:
    where = fleet(8)
    running = bound(plan(2, 4), where).plan
    same = bound(plan(2, 4), where, running).plan
    assert [gpu.replicas for gpu in same.gpus] == [gpu.replicas for gpu in running.gpus]
    rows = tuple(row._replace(max_num_batched_tokens=2048) for row in ROWS)
    other = replace(problem(), llm_points=(make_points(rows=rows), make_points("code")))
    found = bind(
        other,
        plan(2, 4, budget=2048),
        *where,
        running=running,
        generation=2,
        llm_terms=TERMS,
    )
    before = {each.id for gpu in running.gpus for each in gpu.replicas}
    assert not before & ids(found)
    # On the very same GPUs, too, where nothing of before is in the way.
    alone = bind(
        other, plan(2, budget=2048), *where, running=None, generation=1, llm_terms=TERMS
    )
    assert spans(alone) == spans(bound(plan(2), where))
    assert not ids(alone) & ids(bound(plan(2), where))


def test_what_is_replaced_serves_on_wherever_other_gpus_are_free() -> None:
    running = bound(plan(2), fleet(2, 2)).plan
    used = {gpu.id for gpu in running.gpus}
    (after,) = spans(bound(plan(1), fleet(2, 2), running))
    assert not used & set(after)
    # Where none are, successors wait for the GPUs of their predecessor.
    assert len(spans(bound(plan(1, 1), fleet(2), running))) == 2


def test_what_runs_moves_where_a_large_one_has_no_room_otherwise() -> None:
    where = fleet(8, 8)
    gpus, nodes = where
    # One on each node, as a fleet comes to have after many changes.
    half = [
        bound(plan(1), ([gpu for gpu in gpus if gpu.node == node.id], nodes)).plan
        for node in nodes
    ]
    second = replace(half[1].gpus[0].replicas[0], id="chat-g1-2")
    scattered = replace(
        half[0], gpus=(half[0].gpus[0], replace(half[1].gpus[0], replicas=(second,)))
    )
    found = bound(plan(1, 1, 8), where, scattered)
    assert found.unplaced == ()
    assert sorted(map(len, spans(found))) == [1, 1, 8]


def test_lost_cordoned_and_avoided_gpus_start_nothing() -> None:
    gpus, nodes = fleet(2, 2, 2, 2)
    gpus = [replace(gpu, healthy=gpu.node != "n0" or gpu.index == 0) for gpu in gpus]
    nodes = [replace(node, cordoned=node.id == "n1") for node in nodes]
    found = bound(plan(2, 2), (gpus, nodes), avoided={"chat": {GpuId("n2/gpu-1")}})
    assert spans(found) == [("n3/gpu-0", "n3/gpu-1")]
    (missing,) = found.unplaced
    assert (missing.gpu_type, missing.count) == ("H100", 2)


def test_a_replica_that_lost_one_of_its_gpus_is_started_elsewhere() -> None:
    gpus, nodes = fleet(2, 2)
    running = bound(plan(2), (gpus, nodes)).plan
    lost = running.gpus[1].id
    gpus = [replace(gpu, healthy=gpu.id != lost) for gpu in gpus]
    found = bound(plan(2), (gpus, nodes), running)
    assert spans(found) == [("n1/gpu-0", "n1/gpu-1")]


def test_a_replica_without_a_row_is_refused() -> None:
    with pytest.raises(InvalidInput, match="chat has no row for 2 × H100"):
        bound(plan(2, budget=77), fleet(8))


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    wanted=st.lists(st.sampled_from([1, 2, 4, 8]), max_size=12),
)
def test_whatever_the_rule_of_slots_allows_finds_room(
    sizes: list[int], wanted: list[int]
) -> None:
    allowed = all(
        sum(tp // size for tp in wanted if tp >= size)
        <= sum(each // size for each in sizes)
        for size in (2, 4, 8)
    )
    if not allowed or sum(wanted) > sum(sizes):
        return
    found = bound(plan(*wanted), fleet(*sizes))
    assert found.unplaced == ()
    taken = [gpu for gpus in spans(found) for gpu in gpus]
    assert len(taken) == len(set(taken)) == sum(wanted)
    assert all(len({gpu.split("/")[0] for gpu in gpus}) == 1 for gpus in spans(found))
