"""The stand-in's scheduler: every token once, in the order and within the room that vLLM documents."""

from hypothesis import given
from hypothesis import strategies as st

from agents.llm.scheduler import (
    BLOCK_TOKENS,
    EngineRequest,
    EngineSize,
    LlmScheduler,
    Step,
)


def scheduler(**size: int) -> LlmScheduler:
    return LlmScheduler(EngineSize(**size))


def request(name: str, prompt: int = 10, output: int = 3) -> EngineRequest:
    return EngineRequest(id=name, prompt_tokens=prompt, output_tokens=output)


def run(engine: LlmScheduler) -> list[tuple[Step, list[tuple[str, bool]]]]:
    """All steps until nothing is left, with what each gave."""
    steps = []
    while (step := engine.step()) is not None:
        steps.append((step, engine.finish(step)))
    return steps


def test_a_prompt_gives_the_first_token_and_each_step_after_it_one_more() -> None:
    engine = scheduler()
    engine.add(request("a", prompt=10, output=3))
    steps = run(engine)
    assert [step.tokens for step, _ in steps] == [10, 1, 1]
    assert [got for _, got in steps] == [[("a", False)], [("a", False)], [("a", True)]]


def test_long_prompts_come_in_chunks_beside_those_that_decode() -> None:
    engine = scheduler(max_num_batched_tokens=8)
    engine.add(request("a", prompt=4, output=9))
    first = engine.step()
    assert first is not None
    engine.finish(first)
    engine.add(request("b", prompt=12, output=1))
    second = engine.step()
    assert second is not None
    assert (second.decoding, second.chunks) == (("a",), (("b", 7),))
    engine.finish(second)
    third = engine.step()
    assert third is not None
    assert third.chunks == (("b", 5),)
    # It attends to the seven before it, and within itself.
    assert third.pairs == 5 * (7 + 2.5)


def test_a_prompt_waits_until_all_of_it_has_room() -> None:
    engine = scheduler(kv_blocks=4)
    engine.add(request("a", prompt=3 * BLOCK_TOKENS, output=2))
    engine.add(request("b", prompt=2 * BLOCK_TOKENS, output=1))
    step = engine.step()
    assert step is not None
    assert [name for name, _ in step.chunks] == ["a"]
    assert engine.waiting == 1
    ended = [
        name
        for _, got in ((step, engine.finish(step)), *run(engine))
        for name, done in got
        if done
    ]
    assert ended == ["a", "b"]


def test_without_a_free_block_the_youngest_is_computed_again() -> None:
    engine = scheduler(kv_blocks=4)
    for name in ("a", "b"):
        engine.add(request(name, prompt=BLOCK_TOKENS, output=2 * BLOCK_TOKENS))
    steps = run(engine)
    assert engine.preemptions == 1
    again = [step.chunks for step, _ in steps if step.chunks][-1]
    ((name, tokens),) = again
    assert name == "b"
    assert tokens > BLOCK_TOKENS


def test_who_leaves_gives_its_blocks_back() -> None:
    engine = scheduler()
    engine.add(request("a"))
    step = engine.step()
    assert step is not None
    engine.abort("a")
    assert engine.finish(step) == []
    assert (engine.used_blocks, engine.running, engine.step()) == (0, 0, None)


@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=12
    ),
    budget=st.integers(1, 64),
    seqs=st.integers(1, 6),
    blocks=st.integers(7, 20),
)
def test_everybody_gets_every_token_within_all_limits(
    sizes: list[tuple[int, int]], budget: int, seqs: int, blocks: int
) -> None:
    engine = scheduler(
        max_num_batched_tokens=budget, max_num_seqs=seqs, kv_blocks=blocks
    )
    for number, (prompt, output) in enumerate(sizes):
        engine.add(request(str(number), prompt, output))
    tokens = dict.fromkeys(map(str, range(len(sizes))), 0)
    while (step := engine.step()) is not None:
        assert step.tokens <= budget
        assert engine.running <= seqs
        for name, _ in engine.finish(step):
            tokens[name] += 1
        assert engine.used_blocks <= blocks
    assert tokens == {str(number): output for number, (_, output) in enumerate(sizes)}
