"""From a language model's manifest to the decision how it runs, with the interval of its capacity.

    python -m bench.llm.first_plan

All processes are real: `plimsoll up` with its PostgreSQL, and two agents with eight fake H100 each. Services come one
after the other: the manifest is sent, and the plan asked for until it has replicas of the service and says how surely
their capacity is known. Nothing is profiled, and nothing was sized before; kernels are compiled, as after `make
install`. Prints a table and writes bench/results/llm_first_plan.json.
"""

import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.gateway import GatewayDeployment, control_plane, start_agent
from bench.report import Figures, print_table, write_results

NETWORKS = (
    "Llama-3.1-8B-Instruct",
    "Qwen3-32B",
    "Llama-3.1-70B",
    "Qwen3-14B",
    "Qwen3-30B-A3B-Instruct-2507",
    "Llama-2-7b-hf",
)
NODES, GPUS = 2, 8
PATIENCE_S, LOOK_S = 120.0, 0.05


async def measure(folder: Path) -> list[Figures]:
    """A row per service."""
    async with control_plane(folder) as plane:
        with ExitStack() as running:
            for number in range(NODES):
                running.enter_context(
                    await start_agent(
                        plane, folder, f"n{number + 1}", "H100", gpus=GPUS
                    )
                )
            await _until_registered(plane)
            return [
                await _decided(plane, f"m{number}", network)
                for number, network in enumerate(NETWORKS)
            ]


async def _until_registered(plane: GatewayDeployment) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len((await plane.call("GET", "nodes"))["items"]) < NODES:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


async def _decided(plane: GatewayDeployment, name: str, network: str) -> Figures:
    spec = {
        "kind": "llm",
        "network": network,
        "slo": {"ttft_ms": 2000, "itl_ms": 100, "percentile": 0.95},
        "scaling": {"min_replicas": 1},
    }
    begun_s = time.monotonic()
    await plane.put("Service", f"services/{name}", spec)
    async with asyncio.timeout(PATIENCE_S):
        while not (said := await _said(plane, name)):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
    return {
        "network": network,
        "seconds": round(time.monotonic() - begun_s, 1),
        "decision": said.partition(": ")[2],
    }


async def _said(plane: GatewayDeployment, name: str) -> str:
    """What the newest plan says of the service's capacity; empty: nothing yet."""
    newest = (await plane.call("GET", "plans?limit=1"))["items"]
    if not newest:
        return ""
    plan = await plane.call("GET", f"plans/{newest[0]['id']}")
    messages: list[str] = plan["document"]["report"]["messages"]
    own = (each for each in messages if each.startswith(f"{name}: a replica on"))
    return next(own, "")


def main() -> None:
    """Print the table and write it."""
    with tempfile.TemporaryDirectory(prefix="fp", dir="/tmp") as name:
        rows = asyncio.run(measure(Path(name)))
    print_table(rows)
    write_results("llm_first_plan", rows)


if __name__ == "__main__":
    main()
