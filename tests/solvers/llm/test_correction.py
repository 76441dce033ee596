"""What measured runs say of others: of the same configuration most, of another network next to nothing."""

from dataclasses import replace

import numpy as np
import pytest

from solvers.llm.belief import UNMEASURED
from solvers.llm.closed_loop import ClosedClients, closed_loop_means
from solvers.llm.config_json import architecture_from_config
from solvers.llm.correction import StepBeliefs, correct, weigh
from solvers.llm.measured import MeasuredRun, RunConditions
from solvers.llm.runtimes import RUNTIMES
from solvers.llm.step_law import EngineWork, LlmEngine, engine_work, with_windows
from tests.solvers.llm.models import make_hardware, make_network
from tests.solvers.llm.test_architecture import LLAMA_8B

CONDITIONS = RunConditions(
    network="small",
    runtime="vllm",
    gpu_type="H100",
    precision="bf16",
    tp=1,
    clients=32.0,
    prompt=1000.0,
    output=200.0,
)
ENGINE = LlmEngine(
    network=make_network(), hardware=make_hardware(), precision="bf16", tp=1
)


def law_ms(conditions: RunConditions, work: EngineWork | None = None) -> float:
    """Time between tokens by the law alone; work: another engine's."""
    clients = ClosedClients(
        count=np.array([conditions.clients]),
        prompt=np.array([conditions.prompt]),
        output=np.array([conditions.output]),
        budget=np.array([8192.0]),
    )
    work = work or engine_work(ENGINE)
    means = closed_loop_means(work, RUNTIMES["vllm"], clients)
    return float(means.tpot_ms[0])


def slower_run(factor: float) -> MeasuredRun:
    """A run that took `factor` times as long as the law says."""
    return MeasuredRun(
        engine=ENGINE, conditions=CONDITIONS, tpot_ms=factor * law_ms(CONDITIONS)
    )


def test_without_runs_nothing_is_known() -> None:
    assert StepBeliefs([]).of(CONDITIONS) == UNMEASURED


def test_a_run_tells_most_of_its_own_configuration() -> None:
    beliefs = StepBeliefs([slower_run(1.3)])

    same = beliefs.of(CONDITIONS)
    more_clients = beliefs.of(replace(CONDITIONS, clients=64.0))
    elsewhere = beliefs.of(replace(CONDITIONS, gpu_type="L40S"))
    other = beliefs.of(replace(CONDITIONS, network="other", gpu_type="L40S"))

    assert same.factor(0.0) == pytest.approx(1.3, rel=0.03)
    assert 1.3 > more_clients.factor(0.0) > elsewhere.factor(0.0) > 1.0
    assert other.factor(0.0) == pytest.approx(1.0)
    assert same.deviation < more_clients.deviation < UNMEASURED.deviation
    assert [same.is_measured, more_clients.is_measured, elsewhere.is_measured] == [
        True,
        True,
        False,
    ]


def test_what_windows_read_is_of_the_law_and_no_slowness_of_the_run() -> None:
    layers = (["sliding_attention"] * 7 + ["full_attention"]) * 4
    windowed = {**LLAMA_8B, "sliding_window": 1000, "layer_types": layers}
    engine = replace(ENGINE, network=architecture_from_config(windowed))
    without = engine_work(engine)
    law = with_windows(without, engine, cached=1100.0, prompt=1000.0)
    tpot_ms = law_ms(CONDITIONS, law)
    assert tpot_ms > 1.01 * law_ms(CONDITIONS, without)

    run = MeasuredRun(engine=engine, conditions=CONDITIONS, tpot_ms=tpot_ms)

    assert StepBeliefs([run]).of(CONDITIONS).factor(0.0) == pytest.approx(1.0)


def test_a_run_that_others_contradict_counts_less() -> None:
    runs = [replace(CONDITIONS, clients=float(each)) for each in (28, 30, 34, 36)]
    agreeing = weigh(runs, np.full(4, 0.1))
    contradicted = weigh([*runs, CONDITIONS], np.array([0.1, 0.1, 0.1, 0.1, 0.7]))

    # All are of the same server on the same load: the plain mean of five would be 0.22.
    assert correct(contradicted, [CONDITIONS]).log_factor[0] < 0.14
    assert contradicted.noises[4] > 5.0 * contradicted.noises[:4].max()
    assert agreeing.noises == pytest.approx(agreeing.noise, rel=0.2)


def test_what_a_user_measured_counts_in_full_though_others_contradict_it() -> None:
    shipped = [
        replace(slower_run(1.0), conditions=replace(CONDITIONS, clients=float(each)))
        for each in (28, 30, 34, 36)
    ]
    stated = slower_run(1.8)

    one_of_many = StepBeliefs([*shipped, stated]).of(CONDITIONS)
    own = StepBeliefs(shipped).with_stated([stated]).of(CONDITIONS)

    assert one_of_many.factor(0.0) < 1.1
    assert own.factor(0.0) > one_of_many.factor(0.0)
    alone = StepBeliefs([]).with_stated([stated]).of(CONDITIONS)
    assert alone.factor(0.0) == pytest.approx(1.8, rel=0.05)
