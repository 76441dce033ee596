"""Who is left out, for how long, and that somebody always stays."""

import pytest

from agents.router.health import MAX_PROBE_S, PROBE_S, STRIKES, ReplicaHealth


def a_health(*members: str) -> ReplicaHealth:
    health = ReplicaHealth()
    health.set_members(frozenset(members))
    return health


def strike(health: ReplicaHealth, replica_id: str, times: int = STRIKES) -> list[bool]:
    return [health.fail(replica_id, is_unreachable=False) for _ in range(times)]


def test_failures_in_a_row_send_a_replica_out_and_an_answer_between_them_starts_anew() -> (
    None
):
    health = a_health("a", "b")
    assert strike(health, "a", 2) == [False, False]
    health.succeed("a")
    assert strike(health, "a", 3) == [False, False, True]
    assert health.out == {"a"}


def test_never_all_are_out() -> None:
    health = a_health("a", "b", "c")
    for each in ("a", "b", "c"):
        health.fail(each, is_unreachable=True)
    assert health.out == {"a", "b"}
    assert strike(a_health("only"), "only", 10) == [False] * 10


def test_a_table_that_leaves_only_those_that_are_out_takes_them_in_again() -> None:
    health = a_health("a", "b")
    health.fail("a", is_unreachable=True)
    health.set_members(frozenset(("a",)))
    assert health.out == frozenset()


def test_a_table_keeps_what_is_known_and_forgets_who_has_left() -> None:
    health = a_health("a", "b", "c")
    health.fail("a", is_unreachable=True)
    health.fail("b", is_unreachable=True)
    health.set_members(frozenset(("a", "c", "d")))
    assert health.out == {"a"}
    assert not health.fail("b", is_unreachable=True)  # no member any more


def test_whoever_is_in_again_goes_out_at_the_next_failure_until_it_answers_well() -> (
    None
):
    health = a_health("a", "b")
    strike(health, "a")
    health.readmit("a")
    assert health.out == frozenset()
    assert health.fail("a", is_unreachable=False)
    health.readmit("a")
    health.succeed("a")
    assert not health.fail("a", is_unreachable=False)


@pytest.mark.parametrize(
    ("falls", "wait_s"),
    [(1, PROBE_S), (2, 2 * PROBE_S), (4, 8 * PROBE_S), (50, MAX_PROBE_S)],
)
def test_probes_come_later_each_time(falls: int, wait_s: float) -> None:
    health = a_health("a", "b")
    for _ in range(falls):
        health.readmit("a")
        assert health.fail("a", is_unreachable=True)
    assert health.probe_in_s("a") == wait_s
