"""The calendar against hand-computed courses, and against an engine that goes through every sequence."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from solvers.llm.calendar import (
    Draw,
    Replica,
    draw_requests,
    serve,
    share_of_tokens,
)
from solvers.llm.capacity import drawn_requests
from solvers.llm.lengths import NAMED, MeanLengths, length_table, named_lengths
from tests.solvers.llm.models import make_replica, make_table


def draw_of(gaps_s: list[float], prompt: list[int], output: list[int]) -> Draw:
    """Requests whose gaps are seconds at a rate of one per second."""
    return Draw(
        gaps=np.array(gaps_s, dtype=np.float64),
        prompt=np.array(prompt, dtype=np.int64),
        output=np.array(output, dtype=np.int64),
    )


def test_a_request_alone_takes_its_steps() -> None:
    passed = serve(make_replica(), draw_of([1.0], [101], [3]), 1.0)

    # A prompt of 101 tokens in one step of 10 + 0.01·100, then two steps of one token each.
    assert passed.ttft_ms[0] == pytest.approx(11.0)
    assert passed.decode_ms[0] == pytest.approx(20.0)
    assert passed.token_ms.sum() == 2.0


def test_a_long_prompt_is_read_in_parts() -> None:
    passed = serve(make_replica(budget=64), draw_of([1.0], [128], [1]), 1.0)

    assert passed.ttft_ms[0] == pytest.approx(2 * (10.0 + 0.01 * 63))


def test_who_decodes_goes_before_prompts() -> None:
    replica = make_replica(budget=11)
    # The second comes while the first decodes: of eleven tokens per step it has ten.
    passed = serve(replica, draw_of([1.0, 0.015], [11, 20], [10, 1]), 1.0)

    # It comes 4.9 ms into a step of 10; then its two parts of ten, beside one token.
    assert passed.ttft_ms[1] == pytest.approx(5.1 + 2 * 10.1, abs=0.02)


def test_a_full_cache_lets_nobody_in() -> None:
    replica = make_replica(kv_tokens=120.0)

    passed = serve(replica, draw_of([1.0, 0.0], [100, 100], [3, 3]), 1.0)

    # The second begins when the first has ended.
    assert passed.ttft_ms[1] == pytest.approx(
        passed.ttft_ms[0] + 20.0 + 10.99, abs=0.02
    )


def test_what_never_has_room_is_never_served() -> None:
    passed = serve(make_replica(kv_tokens=50.0), draw_of([1.0], [100], [3]), 1.0)

    assert passed.ttft_ms[0] == np.inf


def test_a_limit_within_a_bin_counts_a_part_of_it() -> None:
    passed = serve(make_replica(), draw_of([1.0], [1], [1001]), 1.0)

    assert share_of_tokens(passed, 9.0) == 0.0
    assert 0.0 < share_of_tokens(passed, 10.01) <= 1.0
    assert share_of_tokens(passed, 11.0) == 1.0


@dataclass
class PlainEngine:
    """The same rules, sequence by sequence, with nothing clever."""

    replica: Replica
    now_ms: float = 0.0
    waiting: deque[int] = field(default_factory=deque)
    reading: list[list[int]] = field(default_factory=list)
    """[request, tokens read]"""
    decoding: dict[int, int] = field(default_factory=dict)
    """Tokens made, by request."""

    def run(self, draw: Draw, rate_rps: float) -> tuple[np.ndarray, np.ndarray]:
        """Times to first tokens, and from there to the last."""
        arrival = np.cumsum(draw.gaps) * 1000.0 / rate_rps
        first, last = np.full(len(arrival), np.inf), np.zeros(len(arrival))
        coming = deque(range(len(arrival)))
        while coming or self.waiting or self.reading or self.decoding:
            while coming and arrival[coming[0]] <= self.now_ms:
                self.waiting.append(coming.popleft())
            tokens, pairs, done = self._read(draw)
            if tokens + len(self.decoding) == 0:
                self.now_ms = arrival[coming[0]]
                continue
            self.now_ms += self._length(draw, tokens, pairs)
            for request in list(self.decoding):
                self.decoding[request] += 1
                if self.decoding[request] == draw.output[request]:
                    last[request] = self.now_ms
                    del self.decoding[request]
            for request in done:
                first[request] = last[request] = self.now_ms
                if draw.output[request] > 1:
                    self.decoding[request] = 1
        return first - arrival, last - first

    def _read(self, draw: Draw) -> tuple[int, float, list[int]]:
        limits = self.replica.limits
        room, pairs, done = limits.max_num_batched_tokens - len(self.decoding), 0.0, []
        read = 0
        while room > 0:
            if not self.reading:
                running = len(self.decoding) + len(done)
                if not self.waiting or running >= limits.max_num_seqs:
                    break
                self.reading.append([self.waiting.popleft(), 0])
            request, before = self.reading[0]
            part = min(room, int(draw.prompt[request]) - before)
            pairs += part * (before + part / 2)
            room, read = room - part, read + part
            self.reading[0][1] += part
            if before + part == draw.prompt[request]:
                done.append(request)
                self.reading.pop()
        return read, pairs, done

    def _length(self, draw: Draw, tokens: int, pairs: float) -> float:
        table = self.replica.table
        cached = sum(draw.prompt[each] + made for each, made in self.decoding.items())
        total = tokens + len(self.decoding)
        length = float(np.interp(total, table.tokens, table.step_ms))
        length += table.sequence_ms * len(self.decoding)
        length += table.cached_token_ms * cached + table.pair_ms * pairs
        return length + (table.prompt_step_ms if tokens else 0.0)


@pytest.mark.parametrize("seed", range(6))
def test_it_serves_as_an_engine_that_goes_through_every_sequence(seed: int) -> None:
    generator = np.random.default_rng(seed)
    table = make_table(
        sequence_ms=0.02, cached_token_ms=1e-4, pair_ms=1e-6, prompt_step_ms=3.0
    )
    replica = make_replica(
        table,
        budget=int(generator.choice([32, 256, 2048])),
        seqs=int(generator.choice([4, 64])),
    )
    means = MeanLengths(prompt=120.0, output=30.0)
    draw = draw_requests(length_table(means, longest=4096), 400)
    rate_rps = float(generator.uniform(1.0, 8.0))

    passed = serve(replica, draw, rate_rps)
    ttft_ms, decode_ms = PlainEngine(replica).run(draw, rate_rps)

    assert passed.ttft_ms == pytest.approx(ttft_ms, rel=1e-6)
    assert passed.decode_ms == pytest.approx(decode_ms, rel=1e-6, abs=1e-6)


def test_of_requests_of_a_million_tokens_few_are_drawn() -> None:
    for name in NAMED:
        usual = length_table(named_lengths(name), longest=131_072)
        assert drawn_requests(usual, 40_000) == 40_000
    means = MeanLengths(prompt=1000.0, output=50_000.0, spread=0.0)
    half = length_table(means, longest=131_072)
    assert 10_000 < drawn_requests(half, 40_000) < 13_000
    means = MeanLengths(prompt=1000.0, output=1_000_000.0, spread=0.0)
    huge = length_table(means, longest=1_048_576)
    assert drawn_requests(huge, 40_000) == 2_000
