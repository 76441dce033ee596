"""A bench of the profiler with the networks of `networks`: `python -m bench.real_gpu.bench [--fake] -m … OPTIONS`.

The profiler starts it as the program of a runtime template. The words up to `-m agents.profiling` are this program's;
those behind it are the worker's options, of which `--service` names the network.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

from agents.profiling.bench import main as bench
from agents.serving.engines.engine import Engine
from bench.real_gpu.networks import make_network


def main(words: Sequence[str]) -> int:
    """Entry point; the exit code."""
    own, options = words[: words.index("-m")], words[words.index("-m") + 2 :]

    def make(parsed: argparse.Namespace, environment: Mapping[str, str]) -> Engine:
        return make_network(
            parsed.service, is_fake="--fake" in own, environment=environment
        )

    return bench(options, make)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
