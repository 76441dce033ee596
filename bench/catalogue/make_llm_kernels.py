"""Make the `llm_*.csv` of `agents/sim/data`: times of the kernels that simulated language models' steps are made of.

    python -m bench.catalogue.make_llm_kernels [--shared ../shared/data] [--out agents/sim/data]

Copied from measured tables, thinned to a grid; nothing is smoothed. A re-run gives the same bytes.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from bench.catalogue.make_truth import TRUTH_DATA, Line
from bench.catalogue.measured import DEFAULT_SHARED, write_rows

SYSTEMS = {
    "A100-80GB": "a100_sxm",
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "L40S": "l40s",
}
"""GPU types that are simulated and whose kernels were measured."""
PRECISIONS = {"bf16": "bfloat16", "fp8": "fp8"}
ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)
OUTPUTS = (256, 512, 1024, 2048, 4096, 6144, 8192, 12288, 16384, 65536)
INPUTS = (512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
HEAD_DIM = 128
KV_HEADS = (1, 2, 4, 8)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CACHED = (1, 127, 511, 1023, 2047, 4095, 8191, 16383, 32767, 131071)
HEADS = (4, 8, 16, 32, 64)
PROMPTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
GROUPS = (2, 4, 8)
MESSAGES = tuple(2**power for power in range(7, 30))

Measured = dict[tuple[object, ...], float]


def make(shared: Path, out: Path) -> None:
    """Write every table below `out`."""
    folders = {name: shared / "llm_operators" / each for name, each in SYSTEMS.items()}
    write_rows(
        out / "llm_gemm.csv",
        ("gpu_type", "precision", "rows", "outputs", *map(str, INPUTS)),
        [line for name, each in folders.items() for line in gemm_lines(name, each)],
    )
    write_rows(
        out / "llm_decode_attention.csv",
        ("gpu_type", "kv_heads", "sequences", *map(str, CACHED)),
        [line for name, each in folders.items() for line in decode_lines(name, each)],
    )
    write_rows(
        out / "llm_prompt_attention.csv",
        ("gpu_type", "heads", *map(str, PROMPTS)),
        [line for name, each in folders.items() for line in prompt_lines(name, each)],
    )
    write_rows(
        out / "llm_all_reduce.csv",
        ("gpu_type", "gpus", "bytes", "ms"),
        [line for name, each in folders.items() for line in reduce_lines(name, each)],
    )


def gemm_lines(gpu_type: str, folder: Path) -> Iterator[Line]:
    """Products of matrices by rows and outputs; one time per number of inputs, in ms."""
    found = _read(folder, "gemm", ("gemm_dtype", "m", "n", "k"))
    for precision, dtype in PRECISIONS.items():
        # What a type cannot compute in was not measured.
        if (dtype, 1, 1024, 1024) not in found:
            continue
        for rows in ROWS:
            for outputs in OUTPUTS:
                times = (found[dtype, rows, outputs, each] for each in INPUTS)
                yield gpu_type, precision, rows, outputs, *times


def decode_lines(gpu_type: str, folder: Path) -> Iterator[Line]:
    """Attention of one new token each; one time per number of cached tokens, empty where memory had no room."""
    keys = ("num_heads", "num_key_value_heads", "batch_size", "step", "head_dim")
    found = _read(folder, "generation_attention", keys)
    for kv_heads in KV_HEADS:
        for sequences in SEQUENCES:
            # How many heads share keys changes nothing: reading keys and values is what takes time.
            shape = 4 * kv_heads, kv_heads, sequences
            times = (found.get((*shape, each, HEAD_DIM), "") for each in CACHED)
            yield gpu_type, kv_heads, sequences, *times


def prompt_lines(gpu_type: str, folder: Path) -> Iterator[Line]:
    """Attention within one prompt; one time per number of its tokens."""
    keys = ("num_heads", "num_key_value_heads", "batch_size", "isl", "head_dim")
    found = _read(folder, "context_attention", keys)
    for heads in HEADS:
        shape = heads, min(8, heads // 2), 1
        times = (found[(*shape, each, HEAD_DIM)] for each in PROMPTS)
        yield gpu_type, heads, *times


def reduce_lines(gpu_type: str, folder: Path) -> Iterator[Line]:
    """All-reduces of vLLM within captured graphs."""
    keys = ("kernel_source", "num_gpus", "message_size")
    found = _read(folder, "custom_allreduce", keys)
    for gpus in GROUPS:
        for size in MESSAGES:
            yield gpu_type, gpus, size, found["vLLM_custom_graph", gpus, size]


def _read(folder: Path, kind: str, keys: tuple[str, ...]) -> Measured:
    """Times by what they were measured with: without windows, keys and values in bf16."""
    from pyarrow import parquet

    (path,) = folder.glob(f"*-{kind}.parquet")
    table = parquet.read_table(path).to_pydict()
    count = len(table["latency_ms"])
    usual = {"window_size": 0, "kv_cache_dtype": "bfloat16"}
    usual = {name: value for name, value in usual.items() if name in table}
    return {
        tuple(table[key][place] for key in keys): table["latency_ms"][place]
        for place in range(count)
        if all(table[name][place] == value for name, value in usual.items())
    }


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shared", type=Path, default=DEFAULT_SHARED)
    options.add_argument("--out", type=Path, default=TRUTH_DATA)
    chosen = options.parse_args()
    make(chosen.shared, chosen.out)
