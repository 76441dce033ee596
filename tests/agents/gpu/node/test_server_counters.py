"""What servers counted from one reading to the next, and which of them are a problem of their node."""

import asyncio
from dataclasses import replace
from typing import cast

from agents.base.clock import ManualClock
from agents.base.device import DeviceError
from agents.base.protocol import ReplicaReading, TokenCounts
from agents.gpu.node.polls import SILENT_S, ServerCounters
from agents.gpu.node.use import GpuUse
from agents.replicas.adapters import ReplicaCounts
from agents.replicas.replica import ReplicaView
from agents.replicas.replicas import Workers
from tests.agents.factories import a_view

VIEW = a_view(network="llama", sm_percent=100.0, batch=64, template="vllm")


class Servers:
    """Their counts, as the test sets them; None: they do not answer."""

    counts: ReplicaCounts | None = None

    async def metrics(self, replica_id: str) -> ReplicaCounts:
        if self.counts is None:
            raise DeviceError(f"{replica_id} does not answer")
        return self.counts


class Uses:
    """Takes note of nothing."""

    def noted(self, _: str, counts: ReplicaCounts) -> ReplicaCounts:
        return counts

    def forget(self, replica_id: str) -> None:
        pass


class Bench:
    """Counters of one replica, and a clock."""

    def __init__(self) -> None:
        self.servers, self.clock = Servers(), ManualClock(1000.0)
        self.counters = ServerCounters(
            cast(Workers, self.servers),
            cast(GpuUse, Uses()),
            self.clock,
            period_s=1.0,
        )

    def read(
        self, counts: ReplicaCounts | None, *, after_s: float, view: ReplicaView = VIEW
    ) -> ReplicaReading:
        self.clock.advance(after_s)
        self.servers.counts = counts
        (reading,) = asyncio.run(self.counters.read([view]))
        return reading


def engine(
    requests: int, *, preemptions: int = 0, prompts: int = 0, answers: int = 0
) -> ReplicaCounts:
    return ReplicaCounts(
        requests=requests,
        batches=0,
        busy_s=0.0,
        prompt_tokens=prompts,
        answer_tokens=answers,
        preemptions=preemptions,
    )


def test_tokens_are_those_since_the_last_reading_and_none_of_who_counts_none() -> None:
    bench = Bench()
    bench.read(engine(10, prompts=1000, answers=200), after_s=0.0)
    later = bench.read(engine(15, prompts=1600, answers=300), after_s=5.0)
    assert later.tokens == TokenCounts(600, 0, 100)
    # Its server was started again.
    anew = bench.read(engine(2, prompts=50, answers=7), after_s=5.0)
    assert anew.tokens == TokenCounts(50, 0, 7)
    assert bench.read(ReplicaCounts(batches=3, busy_s=0.1), after_s=5.0).tokens is None


def test_a_server_that_stops_showing_metrics_is_named_with_where_to_look() -> None:
    bench = Bench()
    bench.read(engine(1), after_s=0.0)
    bench.read(None, after_s=SILENT_S - 1.0)
    assert bench.counters.problems == ()
    bench.read(None, after_s=1.0)
    (problem,) = bench.counters.problems
    assert problem.startswith(
        "replica r1: its server has not shown its metrics for 60 s"
    )
    assert "plimsoll logs" in problem
    bench.read(engine(2), after_s=5.0)
    assert bench.counters.problems == ()
    # One that drains may end at any moment.
    bench.read(None, after_s=SILENT_S, view=replace(VIEW, state="draining"))
    assert bench.counters.problems == ()


def test_one_that_sleeps_is_not_silent_and_counts_on_when_it_wakes() -> None:
    bench = Bench()
    bench.read(engine(10, prompts=1000, answers=200), after_s=0.0)
    asleep = replace(VIEW, state="asleep")
    for _ in range(3):
        reading = bench.read(None, after_s=SILENT_S, view=asleep)
        assert (reading.state, reading.requests) == ("asleep", 0)
        assert bench.counters.problems == ()
    woken = bench.read(engine(12, prompts=1200, answers=240), after_s=5.0)
    assert woken.requests == 2
    assert woken.tokens == TokenCounts(200, 0, 40)


def test_an_engine_that_preempts_all_the_time_is_named_with_the_remedy() -> None:
    bench = Bench()
    bench.read(engine(0), after_s=0.0)
    bench.read(engine(100, preemptions=40), after_s=61.0)
    (problem,) = bench.counters.problems
    assert "40 times in a minute in which 100 ended" in problem
    assert "state longer llm.lengths" in problem
    # Now and then is no problem, and the next minute is judged for itself.
    bench.read(engine(200, preemptions=48), after_s=61.0)
    assert bench.counters.problems == ()
    bench.read(engine(200, preemptions=59), after_s=61.0)
    assert len(bench.counters.problems) == 1
