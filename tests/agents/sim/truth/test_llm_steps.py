"""Steps of simulated engines: against the kernels that they are made of, by hand, and what was not measured."""

import numpy as np
import pytest

from agents.llm.scheduler import BLOCK_TOKENS, Step
from agents.sim.truth.kernels import Surface, at, kernels_by_type
from agents.sim.truth.llm_steps import EnginePlace, EngineTruth, ModelShape
from agents.sim.truth.truth import TruthError

SHAPE = ModelShape(
    layers=2,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=6144,
    vocab=65_536,
)
MEMORY_MIB = 65_536.0


def an_engine(
    gpu_type: str = "H100", gpus: int = 1, precision: str = "bf16"
) -> EngineTruth:
    return EngineTruth(
        SHAPE,
        EnginePlace(
            gpu_type=gpu_type, gpus=gpus, precision=precision, memory_mib=MEMORY_MIB
        ),
    )


def test_a_decode_step_is_the_sum_of_its_kernels() -> None:
    kernels = kernels_by_type()["H100"]
    rows = list(kernels.rows).index(32.0)
    # All sizes are measured ones, so that nothing is interpolated.
    products = (6144.0, 4096.0), (4096.0, 4096.0), (12288.0, 4096.0), (4096.0, 6144.0)
    layer_ms = sum(kernels.product_ms("bf16", *each)[rows] for each in products)
    output_ms = kernels.product_ms("bf16", 65_536.0, 4096.0)[rows]
    attention_ms = kernels.decode_ms(8.0, 32.0, 1023.0)
    by_hand_ms = 1.5 + 32 * 0.012 + 0.93 * (2 * layer_ms + output_ms) + 2 * attention_ms
    step = Step(decoding=("a",) * 32, cached_tokens=32 * 1023)
    assert 1000.0 * an_engine().step_s(step) == pytest.approx(by_hand_ms, rel=2e-3)


def test_a_prompt_adds_what_its_tokens_and_its_pairs_take() -> None:
    kernels = kernels_by_type()["H100"]
    place = list(kernels.prompts).index(2048.0)
    without = Step(chunks=(("a", 2048),))
    with_pairs = Step(chunks=(("a", 2048),), pairs=2048.0**2 / 2.0)
    engine = an_engine()
    added_ms = 1000.0 * (engine.step_s(with_pairs) - engine.step_s(without))
    assert added_ms == pytest.approx(2 * kernels.prompt_ms(32.0)[place])


def test_two_gpus_take_half_of_the_work_each_and_talk_about_it() -> None:
    long = Step(chunks=(("a", 8192),))
    one, two = an_engine().step_s(long), an_engine(gpus=2).step_s(long)
    assert 0.5 * one < two < one
    # Weights on two GPUs leave each more room, and each keeps half of the keys.
    assert an_engine(gpus=2).kv_blocks > 2 * an_engine().kv_blocks


def test_the_cache_has_what_the_weights_leave() -> None:
    matrices = 6144 * 4096 + 4096 * 4096 + 12288 * 4096 + 4096 * 6144
    weights = 2 * 2 * matrices + 2 * 2 * 65_536 * 4096
    per_token = 2 * 2 * 8 * 128 * 2
    room = 0.95 * MEMORY_MIB * 2**20 - weights
    assert an_engine().kv_blocks == int(room / per_token / BLOCK_TOKENS)


@pytest.mark.parametrize(
    ("gpu_type", "gpus", "precision", "problem"),
    [
        ("T4", 1, "bf16", "no kernels of language models were measured on T4"),
        ("A100-80GB", 1, "fp8", "weights in fp8 were not measured on A100-80GB"),
        ("H100", 3, "bf16", "3 H100 were not measured together"),
    ],
)
def test_what_nobody_measured_is_refused_in_words(
    gpu_type: str, gpus: int, precision: str, problem: str
) -> None:
    with pytest.raises(TruthError, match=problem):
        an_engine(gpu_type, gpus, precision)


def test_surfaces_pass_through_their_points_and_grow_beyond_them() -> None:
    ms = np.array([[1.0, 2.0], [3.0, 6.0]])
    surface = Surface(np.array([1.0, 8.0]), np.array([10.0, 40.0]), ms)
    assert surface.at(1, 10) == pytest.approx(1.0)
    assert surface.at(8, 40) == pytest.approx(6.0)
    assert surface.at(1, 20) == pytest.approx(2.0**0.5)
    assert surface.at(16, 40) == pytest.approx(12.0)
    assert surface.at(1, 1) == pytest.approx(1.0)
    assert at(20.0, np.array([5.0, 10.0]), np.array([1.0, 3.0])) == pytest.approx(6.0)
