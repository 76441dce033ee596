"""How fast language models were lately, by hand."""

import pytest

from app.store.observation_book import (
    LOOK_BACK_S,
    MIN_REQUESTS,
    MIN_TOKENS,
    served_lengths,
    served_speeds,
)
from app.store.store import Execution
from app.store.windows import EngineTokens
from solvers.types.llm import SPEED_SLOPE, LlmEngineSettings, ServedLengths
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica
from solvers.types.state import GpuId, NodeId, ReplicaId


def a_gpu(number: int, *, tp: int = 1, is_model: bool = True) -> BoundGpu:
    """With one replica of `chat`, or of another service."""
    engine = LlmEngineSettings(
        gpus=("g",) * tp,
        max_num_batched_tokens=512,
        max_num_seqs=64,
        max_model_len=4096,
    )
    replica = BoundReplica(
        id=ReplicaId(f"r{number}"),
        service="chat" if is_model else "images",
        network="llama",
        sm_percent=100.0,
        batch=64,
        arrival_rate_rps=1.0,
        memory_mib=1000.0,
        llm=engine if is_model else None,
    )
    return BoundGpu(
        id=GpuId(f"g{number}"),
        node=NodeId("n"),
        gpu_type="H100",
        clock_mhz=1980.0,
        power_cap_w=700.0,
        replicas=(replica,),
    )


def executed(
    number: int, tokens: int, itl_ms: float, *, is_steady: bool = True
) -> Execution:
    return Execution(
        replica=f"r{number}",
        gpu=f"g{number}",
        service="chat",
        sm_percent=100.0,
        batch=64,
        is_steady=is_steady,
        batches=tokens,
        requests=10,
        execution_ms=itl_ms,
    )


def target(*gpus: BoundGpu) -> BoundPlan:
    return BoundPlan(generation=1, parent=0, policy="joint", gpus=gpus)


def test_tokens_and_the_time_between_them_tell_sequences_and_speed() -> None:
    plan = target(a_gpu(1), a_gpu(2), a_gpu(3, tp=2))
    # 100,000 tokens in 100 s, each 20 ms after the one before: twenty sequences at a time.
    tokens = round(1000 * LOOK_BACK_S)
    seen = (
        executed(1, tokens, 20.0),
        executed(2, tokens, 80.0),
        executed(3, tokens, 10.0),
    )
    one, two = served_speeds(plan, seen)
    assert (one.service, one.gpu_type, one.tp) == ("chat", "H100", 1)
    assert one.max_num_batched_tokens == 512
    # Replicas that are alike are one, by the geometric mean.
    # In steps, so that a second look says the same.
    assert one.sequences == pytest.approx(40.0, rel=0.25)
    slower = one.itl_ms * (40.0 / one.sequences) ** SPEED_SLOPE
    assert slower == pytest.approx(40.0, rel=0.03)
    assert (two.tp, two.sequences) == (2, pytest.approx(10.0, rel=0.25))
    again = (
        executed(1, tokens, 20.1),
        executed(2, tokens, 80.3),
        executed(3, tokens, 10.0),
    )
    assert served_speeds(plan, again) == (one, two)


def test_few_tokens_starts_and_other_replicas_tell_nothing() -> None:
    plan = target(a_gpu(1), a_gpu(2, is_model=False))
    seen = (
        executed(1, MIN_TOKENS - 1, 20.0),
        executed(1, 10_000, 20.0, is_steady=False),
        executed(2, 10_000, 20.0),
        executed(9, 10_000, 20.0),
    )
    assert served_speeds(plan, seen) == ()
    assert served_speeds(None, seen) == ()
    (alone,) = served_speeds(plan, (executed(1, MIN_TOKENS, 20.0),))
    assert alone.sequences == 1.0


def step(requests: int, prompt: int, output: int, found: int = 0) -> EngineTokens:
    """Five minutes of requests that are alike."""
    return EngineTokens(
        requests, prompt * requests, found * requests, output * requests
    )


def test_lengths_are_the_worst_of_the_last_hours() -> None:
    steps = [step(500, 1000, 200, 400), step(900, 800, 300, 80), step(300, 400, 90, 60)]

    (found,) = served_lengths([("chat", each) for each in steps])

    assert found == ServedLengths("chat", 1000.0, 300.0, 0.1)


def test_steps_of_few_requests_are_looked_at_together() -> None:
    few = [step(100, 1000, 100), step(100, 1000, 400), step(100, 1000, 100)]
    begun = step(99, 9000, 9000)

    (found,) = served_lengths([("chat", each) for each in (*few, begun)])

    assert found == ServedLengths("chat", 1000.0, 200.0, 0.0)
    (together,) = served_lengths([("chat", step(60, 4000, 50))] * 2)
    assert together.prompt == 4000.0
    assert served_lengths([("chat", begun)]) == ()
    # Engines that are asked for nothing but one token, and prompts of none.
    (least,) = served_lengths([("chat", EngineTokens(MIN_REQUESTS, 0, 0, 0))])
    assert least == ServedLengths("chat", 1.0, 1.0, 0.0)
