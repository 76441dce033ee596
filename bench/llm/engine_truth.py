"""How near simulated engines come to measured servers: the mean time between tokens (TPOT) of closed loops.

    python -m bench.llm.engine_truth

The servers are those that ship with the catalogue: dense networks on vLLM, on GPU types whose kernels were measured.
Each is simulated with as many clients and lengths. Prints a table, and writes bench/results/llm_engine_truth.json; the
factor of `agents.sim.truth.llm_steps` is fitted to the median of all.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from agents.llm.scheduler import EngineRequest, EngineSize, LlmScheduler
from agents.sim.truth.kernels import kernels_by_type
from agents.sim.truth.llm_steps import EnginePlace, EngineTruth
from app.catalogue.language_models import find_architecture, load_hardware, load_runs
from app.simulate.run.model_services import shape_of
from app.simulate.scenario.models import is_dense
from bench.report import Figures, print_table, write_results
from solvers.llm.closed_loop import DEFAULT_BUDGET
from solvers.llm.kv_cache import MEMORY_SHARE
from solvers.llm.measured import MeasuredRun

MAX_CLIENTS = 256
_MIB_PER_GIB = 1024.0
_SPREAD = 0.1
"""Lengths are drawn so evenly around their means."""
_SEED = 3


def main() -> None:
    """One line per way to run a network, and one of all."""
    ratios = defaultdict[str, list[float]](list)
    for run in load_runs():
        where = run.conditions
        if _is_simulated(run):
            name = f"{where.network.partition('/')[2]} {where.precision}, {where.tp} × {where.gpu_type}"
            ratios[name].append(simulated_tpot_ms(run) / run.tpot_ms)
    table = [_line(name, each) for name, each in sorted(ratios.items())]
    together = [ratio for each in ratios.values() for ratio in each]
    table.append(_line("all", together))
    print_table(table)
    write_results("llm_engine_truth", table)


def _is_simulated(run: MeasuredRun) -> bool:
    where = run.conditions
    kernels = kernels_by_type().get(where.gpu_type)
    return (
        where.runtime == "vllm"
        and where.clients <= MAX_CLIENTS
        and is_dense(find_architecture(where.network))
        and kernels is not None
        and where.precision in kernels.products
    )


def simulated_tpot_ms(run: MeasuredRun) -> float:
    """The mean time between tokens of a simulated engine whose clients send one request after the other."""
    where = run.conditions
    memory_gib = MEMORY_SHARE * load_hardware()[where.gpu_type].memory_gib
    place = EnginePlace(
        gpu_type=where.gpu_type,
        gpus=where.tp,
        precision=where.precision,
        memory_mib=memory_gib * _MIB_PER_GIB,
    )
    truth = EngineTruth(shape_of(find_architecture(where.network)), place)
    scheduler = LlmScheduler(
        EngineSize(
            max_num_batched_tokens=int(DEFAULT_BUDGET),
            max_num_seqs=MAX_CLIENTS,
            kv_blocks=truth.kv_blocks,
        )
    )
    generator, clients = np.random.default_rng(_SEED), round(where.clients)
    first_s: dict[str, float] = {}
    outputs: dict[str, int] = {}
    means_s: list[float] = []
    now_s, sending = 0.0, clients
    # The first third is thrown away: all clients begin at once.
    while len(means_s) < 3 * clients:
        for _ in range(sending):
            request_id = str(len(outputs))
            factors = generator.uniform(1.0 - _SPREAD, 1.0 + _SPREAD, 2)
            outputs[request_id] = max(2, round(where.output * factors[1]))
            scheduler.add(
                EngineRequest(
                    id=request_id,
                    prompt_tokens=max(1, round(where.prompt * factors[0])),
                    output_tokens=outputs[request_id],
                )
            )
        step = scheduler.step()
        assert step is not None, "there is always somebody who waits for an answer"
        now_s += truth.step_s(step)
        sending = 0
        for request_id, is_done in scheduler.finish(step):
            begun_s = first_s.setdefault(request_id, now_s)
            if is_done:
                means_s.append((now_s - begun_s) / (outputs[request_id] - 1))
                sending += 1
    return 1000.0 * float(np.mean(means_s[clients:]))


def _line(name: str, ratios: Sequence[float]) -> Figures:
    errors = np.abs(np.array(ratios) - 1.0)
    return {
        "engine": name,
        "servers": len(ratios),
        "simulated / measured": round(float(np.median(ratios)), 3),
        "error median %": round(100.0 * float(np.median(errors)), 1),
        "mean %": round(100.0 * float(np.mean(errors)), 1),
        "p90 %": round(100.0 * float(np.quantile(errors, 0.9)), 1),
    }


if __name__ == "__main__":
    main()
