"""Enforcement of tasks: after the replicas, out of their way, and that it always arrives."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.base.device import GpuState, NodeState
from agents.base.protocol import NodeCommand, TaskCommand, TaskState
from agents.enforce.actions import (
    Action,
    Drain,
    StartReplica,
    StartTask,
    StopTask,
    SwapIn,
    SwapOut,
)
from agents.enforce.diff import actions, is_settled
from tests.agents.enforce.test_diff import carry_out, settle, settled
from tests.agents.factories import (
    a_command,
    a_replica,
    a_task,
    an_empty_gpu,
    an_empty_node,
    commands_with_tasks,
    on_gpu,
    run,
    task_states,
)
from tests.agents.paper_device import PaperDevice, a_running_task


def a_wanted(*tasks: TaskCommand, generation: int = 2) -> NodeCommand:
    return on_gpu(tasks=tasks, generation=generation)


def anew(task: TaskCommand) -> tuple[Action, ...]:
    """Now only the stop: a real one takes a while, and holds its name and its memory until it is gone."""
    return (StopTask(task=task.name),)


def of_tasks(todo: Sequence[Action]) -> tuple[Action, ...]:
    return tuple(
        each
        for each in todo
        if isinstance(each, StartTask | StopTask | SwapOut | SwapIn)
    )


def test_a_task_starts_after_new_replicas_came_and_old_ones_went() -> None:
    device = settled(on_gpu(a_replica("old")))
    wanted = on_gpu(a_replica("new"), tasks=(a_task("t1"),), generation=2)
    settle(device, wanted)
    expected = "start new; route {'chat': ['new']}; drain old; stop old; start task t1"
    assert "; ".join(device.log) == expected


def test_a_task_waits_while_a_wanted_replica_is_held_back() -> None:
    wanted = on_gpu(a_replica("r1"), tasks=(a_task("t1"),))
    node = an_empty_node()
    assert of_tasks(actions(wanted, node, held={("replica", "r1")})) == ()
    assert not is_settled(wanted, node)


@pytest.mark.parametrize(
    ("state", "wanted", "todo"),
    [
        # As wanted, or on its way.
        ("starting", a_task(), ()),
        ("running", a_task(), ()),
        ("swapping", a_task(), ()),
        ("swapped", a_task(), (SwapIn(task="t1"),)),
        ("running", a_task(done=500.0, iterations=2000), ()),
        # To the host's memory.
        ("starting", a_task(is_resident=False), (StopTask(task="t1"),)),
        ("running", a_task(is_resident=False), (SwapOut(task="t1"),)),
        ("swapping", a_task(is_resident=False), ()),
        ("swapped", a_task(is_resident=False), ()),
        # Not wanted, or not as it is.
        ("running", None, (StopTask(task="t1"),)),
        ("swapped", None, (StopTask(task="t1"),)),
        ("finished", None, (StopTask(task="t1"),)),
        ("failed", None, (StopTask(task="t1"),)),
        ("swapping", a_task(batch=8), anew(a_task(batch=8))),
        ("running", a_task(sm_percent=40.0), anew(a_task(sm_percent=40.0))),
        ("running", a_task(memory_mib=900.0), anew(a_task(memory_mib=900.0))),
        ("swapped", a_task(network="vgg19"), anew(a_task(network="vgg19"))),
        ("failed", a_task(), anew(a_task())),
        # Finished, and not yet known to be.
        ("finished", a_task(sm_percent=40.0), ()),
        ("finished", a_task(is_resident=False), ()),
    ],
)
def test_each_state_of_a_task_against_what_is_wanted(
    state: TaskState, wanted: TaskCommand | None, todo: tuple[Action, ...]
) -> None:
    gpu = replace(
        an_empty_gpu(),
        clock_mhz=1500.0,
        power_limit_w=300.0,
        tasks=(a_running_task(a_task(), state),),
    )
    command = a_wanted(*((wanted,) if wanted else ()))
    assert actions(command, NodeState(gpus=(gpu,))) == todo


def test_a_task_that_runs_as_another_user_than_its_projects_is_started_anew() -> None:
    device = settled(a_wanted(a_task(), generation=1))
    device.put_task("t1", uid=7)
    device = PaperDevice(replace(run(device.state()), uids={"": 7, "team-a": 8}))
    settle(device, a_wanted(a_task(project="team-b")))
    assert device.log == []
    settle(device, a_wanted(a_task(project="team-a")))
    assert device.log == ["stop task t1", "start task t1"]
    assert [each.uid for each in device.tasks()] == [8]


def test_a_failed_task_that_is_held_back_stays_visible() -> None:
    device = settled(a_wanted(a_task(), generation=1))
    device.put_task("t1", state="failed")
    state = run(device.state())
    assert actions(a_wanted(a_task()), state, held={("task", "t1")}) == ()
    assert not is_settled(a_wanted(a_task()), state)


def test_a_task_that_finished_on_one_gpu_is_not_started_on_another() -> None:
    device = settled(a_wanted(a_task(), generation=1))
    device.put_task("t1", state="finished")
    wanted = on_gpu(tasks=(a_task(),), index=1, generation=2)
    settle(device, wanted)
    assert [task for task in device.log if "task" in task] == []
    settle(device, a_command(generation=3))
    assert device.tasks() == ()


def test_a_task_moves_to_another_gpu_by_a_stop_and_a_start() -> None:
    device = settled(a_wanted(a_task(), generation=1))
    settle(device, on_gpu(tasks=(a_task(done=70.0),), index=1, generation=2))
    assert [each for each in device.log if "task" in each] == [
        "stop task t1",
        "start task t1",
    ]


def test_a_replica_sends_as_few_tasks_as_needed_to_the_host() -> None:
    tasks = tuple(
        a_task(f"t{number}", memory_mib=700.0, sm_percent=5.0) for number in (1, 2, 3)
    )
    device = settled(on_gpu(a_replica("old"), tasks=tasks))
    state = run(device.state())
    # 4000 - 1000 - 3 * 700 = 900 MiB are free: 1500 need one task's place, 1700 need two, of which t2 goes anyway.
    one = on_gpu(a_replica("new", memory_mib=1500.0), tasks=tasks, generation=2)
    assert of_tasks(actions(one, state)) == (SwapOut(task="t3"),)
    away = (tasks[0], msgspec.structs.replace(tasks[1], is_resident=False), tasks[2])
    two = on_gpu(a_replica("new", memory_mib=1700.0), tasks=away, generation=2)
    assert of_tasks(actions(two, state)) == (SwapOut(task="t2"), SwapOut(task="t3"))


def test_a_task_leaves_for_a_shadow_switch_and_comes_back_after_it() -> None:
    tasks = (
        a_task("t1", memory_mib=800.0),
        a_task("t2", memory_mib=700.0, sm_percent=10.0),
    )
    device = settled(on_gpu(a_replica("old", memory_mib=1500.0), tasks=tasks))
    # 1000 MiB are free next to old and the tasks, the new one needs 1500: t2 makes room, old serves on.
    settle(
        device, on_gpu(a_replica("new", memory_mib=1500.0), tasks=tasks, generation=2)
    )
    expected = "swap out t2; start new; route {'chat': ['new']}; drain old; stop old; swap in t2"
    assert "; ".join(device.log) == expected


def test_a_task_that_is_still_starting_is_stopped_instead() -> None:
    wanted = on_gpu(
        a_replica("r1", memory_mib=3500.0), tasks=(a_task("t1", memory_mib=500.0),)
    )
    other = a_running_task(a_task("t1", memory_mib=500.0), "starting")
    replica = a_replica("old", memory_mib=100.0, service="b")
    device = PaperDevice(an_empty_node())
    settle(device, on_gpu(replica))
    state = run(device.state())
    state = NodeState(
        gpus=(replace(state.gpus[0], tasks=(other,)),), routes=state.routes
    )
    # 3400 MiB are free; the old replica's 100 MiB would do too, but a replica comes before a task.
    todo = actions(wanted, state, migrating={"old"})
    assert of_tasks(todo) == (StopTask(task="t1"),)
    assert not [each for each in todo if isinstance(each, StartReplica)]


def test_what_drains_or_is_being_swapped_counts_before_another_task_leaves() -> None:
    tasks = (
        a_task("t1", memory_mib=1000.0),
        a_task("t2", memory_mib=1000.0, sm_percent=10.0),
    )
    wanted = on_gpu(a_replica("new", memory_mib=2000.0), tasks=tasks)
    swapping = (a_running_task(tasks[0]), a_running_task(tasks[1], "swapping"))
    gpu = replace(an_empty_gpu(memory_mib=4000.0), tasks=swapping)
    # 2000 MiB are free: new fits.
    assert [
        type(each)
        for each in actions(wanted, NodeState(gpus=(gpu,)))
        if isinstance(each, StartReplica)
    ] == [StartReplica]
    # 1000 MiB are free, 1000 more come with t2.
    assert (
        of_tasks(actions(wanted, NodeState(gpus=(replace(gpu, memory_mib=3000.0),))))
        == ()
    )
    # 500 MiB are free; t2's 1000 are not enough.
    assert of_tasks(
        actions(wanted, NodeState(gpus=(replace(gpu, memory_mib=2500.0),)))
    ) == (SwapOut(task="t1"),)


def test_a_task_waits_for_the_room_of_one_that_leaves() -> None:
    away, tasks = (
        a_task("t1", memory_mib=2000.0, is_resident=False),
        (a_task("t2"), a_task("t3", memory_mib=1500.0)),
    )
    wanted = a_wanted(away, *tasks)
    device = PaperDevice(
        NodeState(gpus=(replace(an_empty_gpu(), tasks=(a_running_task(away),)),))
    )
    # 2000 MiB are free next to t1: t2 takes 1000 of them, t3 needs 1500.
    assert of_tasks(carry_out(device, wanted)) == (
        SwapOut(task="t1"),
        StartTask(gpu_index=0, task=tasks[0]),
    )
    assert carry_out(device, wanted) == ()
    device.make_ready()
    assert carry_out(device, wanted) == (StartTask(gpu_index=0, task=tasks[1]),)


def test_a_task_that_did_not_start_is_not_started_again_while_it_is_held_back() -> None:
    assert (
        of_tasks(actions(a_wanted(a_task()), an_empty_node(), held={("task", "t1")}))
        == ()
    )


def test_no_task_leaves_where_a_draining_replica_makes_room() -> None:
    task = a_task("t1", memory_mib=500.0)
    device = settled(on_gpu(a_replica("old", memory_mib=3000.0), tasks=(task,)))
    wanted = on_gpu(a_replica("new", memory_mib=3000.0), tasks=(task,), generation=2)
    device.put("old", state="draining", in_flight=1)
    assert of_tasks(actions(wanted, run(device.state()))) == ()


def test_old_replicas_are_drained_early_only_for_what_the_tasks_do_not_give() -> None:
    task = a_task("t1", memory_mib=500.0)
    device = settled(on_gpu(a_replica("old", memory_mib=3000.0), tasks=(task,)))
    little = on_gpu(
        a_replica("new", memory_mib=1000.0), tasks=(task,), generation=2
    )  # 500 MiB are free
    much = on_gpu(a_replica("new", memory_mib=3500.0), tasks=(task,), generation=2)
    state = run(device.state())
    assert Drain(replica_id="old") not in actions(little, state)
    todo = actions(much, state)
    assert SwapOut(task="t1") in todo
    assert Drain(replica_id="old") in todo


def test_nothing_of_a_task_is_started_on_a_lost_gpu() -> None:
    wanted = a_wanted(a_task("t1"), a_task("t2"))
    failed = a_running_task(a_task("t1"), "failed")
    node = NodeState(gpus=(replace(an_empty_gpu(), healthy=False, tasks=(failed,)),))
    assert of_tasks(actions(wanted, node)) == (StopTask(task="t1"),)
    assert not is_settled(wanted, node)


def used_mib(gpu: GpuState) -> float:
    replicas_mib = sum(
        each.memory_mib for each in gpu.replicas if each.state != "failed"
    )
    return replicas_mib + sum(
        each.memory_mib for each in gpu.tasks if each.holds_memory
    )


@given(
    before=commands_with_tasks(1),
    after=commands_with_tasks(2),
    rounds=st.integers(0, 5),
)
def test_every_transition_with_tasks_arrives_without_ever_overcommitting_memory(
    before: NodeCommand, after: NodeCommand, rounds: int
) -> None:
    device = PaperDevice(
        an_empty_node(an_empty_gpu(0), an_empty_gpu(1))
    )  # raises where memory would not suffice
    for _ in range(rounds):
        carry_out(device, before)
        device.make_ready()
    settle(device, after)
    running = {
        (each.name, each.sm_percent)
        for each in device.tasks()
        if each.state == "running"
    }
    assert running == {
        (each.name, each.sm_percent)
        for gpu in after.gpus
        for each in gpu.tasks
        if each.is_resident
    }
    assert all(each.state in ("running", "swapped") for each in device.tasks())


@given(state=task_states(), wanted=commands_with_tasks(1))
def test_tasks_in_any_state_arrive_as_wanted(
    state: NodeState, wanted: NodeCommand
) -> None:
    device = PaperDevice(state)
    settle(device, wanted)
    assert actions(wanted, run(device.state())) == ()
    finished = {each.name for each in device.tasks() if each.state == "finished"}
    assert {each.name for each in device.tasks() if each.state == "running"} == {
        each.name for gpu in wanted.gpus for each in gpu.tasks if each.is_resident
    } - finished


@given(before=commands_with_tasks(1), after=commands_with_tasks(2))
def test_a_replica_always_comes_before_a_task(
    before: NodeCommand, after: NodeCommand
) -> None:
    device = PaperDevice(an_empty_node(an_empty_gpu(0), an_empty_gpu(1)))
    settle(device, before)
    for _ in range(8):
        state = run(device.state())
        todo = carry_out(device, after)
        for command in after.gpus:
            wanted = {replica.id for replica in command.replicas}
            gpu = state.gpus[command.index]
            is_quiet = {each.id for each in gpu.replicas} == wanted
            names = {task.name for task in command.tasks}
            begun = [
                each for each in of_tasks(todo) if isinstance(each, StartTask | SwapIn)
            ]
            mine = [
                each
                for each in begun
                if (each.task.name if isinstance(each, StartTask) else each.task)
                in names
            ]
            assert is_quiet or not mine
            # Where a replica still waits for memory no task sits on it that could have left.
            now = run(device.state()).gpus[command.index]
            waits = [
                each
                for each in command.replicas
                if each.id not in {replica.id for replica in now.replicas}
            ]
            free_mib = (
                now.memory_mib
                - used_mib(now)
                + sum(t.memory_mib for t in now.tasks if t.state == "swapping")
            )
            drained_mib = sum(
                each.memory_mib for each in now.replicas if each.state == "draining"
            )
            if sum(each.memory_mib for each in waits) > free_mib + drained_mib:
                assert all(
                    task.state not in ("starting", "running") for task in now.tasks
                )
        device.make_ready()


def test_nothing_takes_the_memory_of_a_stopped_task_before_it_is_gone() -> None:
    # 16384 MiB, of which the task that is not wanted any more holds 16000: the replica has no room until it is gone,
    # and no other task leaves for it, since 16000 are as good as free.
    going, other = (
        a_running_task(a_task("t1", memory_mib=16000.0)),
        a_running_task(a_task("t2", memory_mib=300.0)),
    )
    node = NodeState(
        gpus=(replace(an_empty_gpu(), memory_mib=16384.0, tasks=(going, other)),)
    )
    wanted = on_gpu(
        a_replica("r1", memory_mib=5000.0), tasks=(a_task("t2", memory_mib=300.0),)
    )
    todo = actions(wanted, node)
    assert of_tasks(todo) == (StopTask(task="t1"),)
    assert not any(isinstance(each, StartReplica) for each in todo)
    gone = NodeState(gpus=(replace(node.gpus[0], tasks=(other,)),))
    assert any(isinstance(each, StartReplica) for each in actions(wanted, gone))
