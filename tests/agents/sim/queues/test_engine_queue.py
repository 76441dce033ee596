"""One simulated engine, by hand: steps of a second each. Its scheduler has tests of its own."""

import pytest

from agents.llm.scheduler import EngineSize, Step
from agents.sim.queues.engine_queue import MAX_PRESENT, EngineQueue, TokenLimits
from agents.sim.queues.tally import ServiceTally
from agents.sim.truth.llm_steps import EnginePlace, EngineTruth
from tests.agents.sim.truth.test_llm_steps import SHAPE


class EvenSteps(EngineTruth):
    """Every step takes a second and draws 100 W of each GPU."""

    def __init__(self) -> None:
        super().__init__(
            SHAPE,
            EnginePlace(gpu_type="H100", gpus=1, precision="bf16", memory_mib=65_536.0),
        )
        self.busy_w = 100.0

    def step_s(self, step: Step) -> float:
        return 1.0


def a_queue(
    *, max_num_seqs: int = 8, kv_blocks: int = 64, ttft_s: float = 2.0
) -> EngineQueue:
    size = EngineSize(
        max_num_batched_tokens=64, max_num_seqs=max_num_seqs, kv_blocks=kv_blocks
    )
    return EngineQueue(EvenSteps(), size, TokenLimits(ttft_s=ttft_s, itl_s=1.5))


def test_first_tokens_and_answers_come_when_their_steps_end() -> None:
    queue, tally = a_queue(), ServiceTally()
    queue.begin(0.0)
    # The prompt's step ends at 1.5 s, those of the three other tokens at 2.5, 3.5 and 4.5 s.
    queue.offer((10, 4), (0.5, 0.25), tally)
    queue.end(4.0, tally)
    # Two tokens followed the first one, each after a second.
    assert (tally.served, queue.in_flight) == (0, 1)
    assert (queue.batches, queue.execution_s) == (2, pytest.approx(2.0))
    queue.begin(4.0)
    queue.end(10.0, tally)
    assert (tally.served, tally.in_slo, tally.output_tokens) == (1, 1, 4)
    assert tally.latency_ms(0.5) == pytest.approx(1250.0, rel=0.01)
    assert tally.sojourn_s == pytest.approx(4.25)
    # What came before it reached the replica is counted by the one who held it.
    assert tally.present_s == pytest.approx(4.0)
    assert (queue.busy_s, queue.energy_j) == (pytest.approx(4.0), pytest.approx(400.0))


def test_an_answer_is_late_by_its_first_token_or_by_the_mean_of_the_others() -> None:
    queue, tally = a_queue(ttft_s=0.5), ServiceTally()
    queue.begin(0.0)
    queue.offer((10, 2), (0.0, 0.0), tally)
    queue.end(5.0, tally)
    assert (tally.served, tally.in_slo) == (1, 0)
    queue, tally = a_queue(), ServiceTally()
    queue.begin(0.0)
    # On a straggler a token takes 1.6 s, more than the 1.5 s that are promised.
    queue.slowdown = 1.6
    queue.offer((10, 2), (0.0, 0.0), tally)
    queue.end(5.0, tally)
    assert (tally.served, tally.in_slo) == (1, 0)


def test_no_cut_of_the_time_changes_anything() -> None:
    arrivals_s = [0.3 * number for number in range(40)]
    counts = []
    for window_s in (100.0, 0.7):
        queue, tally = a_queue(max_num_seqs=3), ServiceTally()
        start_s = 0.0
        while start_s < 100.0:
            end_s = min(100.0, start_s + window_s)
            queue.begin(start_s)
            for moment_s in (each for each in arrivals_s if start_s <= each < end_s):
                queue.advance(moment_s, tally)
                queue.offer((20, 5), (moment_s, moment_s), tally)
            queue.end(end_s, tally)
            start_s = end_s
        counts.append((tally.served, tally.in_slo, tally.fine.tolist()))
        assert tally.present_s == pytest.approx(tally.sojourn_s + queue.age_s(100.0))
    assert counts[0] == counts[1]


def test_what_has_no_room_is_refused_and_what_is_lost_is_counted() -> None:
    queue, tally = a_queue(kv_blocks=2), ServiceTally()
    queue.begin(0.0)
    queue.offer((30, 10), (0.0, 0.0), tally)
    assert (tally.rejected, queue.in_flight) == (1, 0)
    for _ in range(MAX_PRESENT + 1):
        queue.offer((4, 4), (0.0, 0.0), tally)
    assert (tally.rejected, queue.in_flight) == (2, MAX_PRESENT)
    assert queue.count_older(0.5) == MAX_PRESENT
    assert queue.age_s(2.0) == pytest.approx(2.0 * MAX_PRESENT)
    assert queue.drop() == MAX_PRESENT
    queue.end(3.0, tally)
    assert (queue.in_flight, tally.served) == (0, 0)
