"""The calendar against hand-computed courses, and against an engine that goes through every sequence."""

import numpy as np
import pytest

from solvers.check_laws import AuditLoad, PlainEngine
from solvers.llm.calendar import (
    Draw,
    draw_requests,
    seen_ttft_ms,
    serve,
    share_of_tokens,
)
from solvers.llm.lengths import MeanLengths, length_table
from tests.examples import seeds
from tests.solvers.llm.models import make_replica, make_step_law, make_table


def draw_of(
    gaps_s: list[float],
    prompt: list[int],
    output: list[int],
    found: list[int] | None = None,
) -> Draw:
    """AuditLoad whose gaps are seconds at a rate of one per second."""
    return Draw(
        gaps=np.array(gaps_s, dtype=np.float64),
        prompt=np.array(prompt, dtype=np.int64),
        found=np.array(found or [0] * len(prompt), dtype=np.int64),
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


def test_what_the_cache_has_of_a_prompt_is_not_read() -> None:
    draw = draw_of([1.0], [128], [1], found=[100])

    passed = serve(make_replica(budget=64), draw, 1.0)

    assert passed.ttft_ms[0] == pytest.approx(10.0 + 0.01 * 27)


def test_clients_wait_for_the_way_and_two_steps_more() -> None:
    draw = draw_of([1.0], [101], [3])
    table = make_table(request_ms=5.0, prompt_token_ms=0.1)
    passed = serve(make_replica(table), draw, 1.0)

    # 11 ms in the engine, 5 and 10.1 on the way, and two steps of 10.
    assert seen_ttft_ms(passed, draw, table)[0] == pytest.approx(46.1)


def test_who_decodes_goes_before_prompts() -> None:
    replica = make_replica(budget=11)
    # The second comes while the first decodes: of eleven tokens per step it has ten.
    passed = serve(replica, draw_of([1.0, 0.015], [11, 20], [10, 1]), 1.0)

    # It comes 4.9 ms into a step of 10; then its two parts of ten, with one token.
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


@pytest.mark.parametrize("seed", seeds(6))
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
    engine = PlainEngine(
        law=make_step_law(replica),
        budget=replica.limits.max_num_batched_tokens,
        places=replica.limits.max_num_seqs,
        load=AuditLoad(
            arrival_ms=np.cumsum(draw.gaps) * 1000.0 / rate_rps,
            prompt=tuple(map(int, draw.prompt)),
            output=tuple(map(int, draw.output)),
        ),
    )
    answers = engine.run()

    assert passed.ttft_ms == pytest.approx(answers.ttft_ms, rel=1e-6)
    assert passed.decode_ms == pytest.approx(answers.decode_ms, rel=1e-6, abs=1e-6)
    assert passed.token_ms.sum() == sum(answers.token_ms.values())
