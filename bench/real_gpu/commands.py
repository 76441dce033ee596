"""`python -m bench.real_gpu STEP`: options, what is missing on this machine, and the steps one after the other.

Exit codes: 0 everything asked for is measured, 1 something went wrong, 2 wrong arguments, 3 the budget ended first or
cells were left out: the same command goes on.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.real_gpu.run import Options, Programs, Run

STEPS = ("probe", "share", "solo", "pairs", "switch", "agent")
NEEDED = {
    "msgspec": "msgspec",
    "psutil": "psutil",
    "aiohttp": "aiohttp",
    "prometheus_client": "prometheus-client",
    "pynvml": "nvidia-ml-py",
}
"""Packages by the module that is imported."""
TORCH = ("torch", "torchvision")
NETWORKS = "resnet50,mobilenet_v2,vgg16,densenet121,efficientnet_b0,vit_b_16"
LEFT_OVER = 3


def main(
    arguments: Sequence[str] | None = None, programs: "Programs | None" = None
) -> int:
    """Entry point; the exit code. `programs`: other processes than ours, for rehearsals."""
    parser = make_parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    parsed = parser.parse_args(words)
    shares, batches = _numbers(parser, parsed.shares), _numbers(parser, parsed.batches)
    if lacking := missing_packages(
        needs_torch=parsed.step != "probe" and not parsed.fake
    ):
        print(f"Error: {lacking}", file=sys.stderr)
        return 1
    from agents.base.device import DeviceError, NoDriver
    from agents.gpu.nvml.session import Nvml
    from bench.real_gpu.reading import ReadNvml
    from bench.real_gpu.run import open_run

    try:
        options = _options(parsed, words, shares, tuple(map(int, batches)))
        options.out.mkdir(parents=True, exist_ok=True)
        with Nvml() as nvml:
            run = open_run(options, ReadNvml(nvml), programs=programs, say=_say)
            return asyncio.run(
                _steps(run, STEPS if parsed.step == "all" else (parsed.step,))
            )
    except NoDriver as error:
        print(
            f"No GPU here: {error}. These steps need NVIDIA's driver; nvidia-smi must list the GPU.",
            file=sys.stderr,
        )
    except (DeviceError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
    return 1


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.real_gpu",
        description="Measure a GPU that was lent; no clock, limit or mode is changed. See docs/measure.md.",
    )
    parser.add_argument(
        "step",
        choices=(*STEPS, "all"),
        metavar="STEP",
        help=f"{', '.join(STEPS)}, or all in order",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="the set; what is in it is kept",
    )
    parser.add_argument(
        "--budget-s",
        type=_amount,
        default=540.0,
        metavar="N",
        help="begin nothing after so long (default: 540)",
    )
    parser.add_argument(
        "--gpu", type=int, default=0, metavar="INDEX", help="which GPU (default: 0)"
    )
    parser.add_argument(
        "--gpu-type",
        default="",
        metavar="NAME",
        help="in the rows (default: the driver's name)",
    )
    parser.add_argument(
        "--networks",
        default=NETWORKS,
        metavar="NAME,...",
        help="of torchvision.models (default: six)",
    )
    parser.add_argument(
        "--shares",
        default="10,20,30,50,75,100",
        metavar="PERCENT,...",
        help="of share and solo",
    )
    parser.add_argument(
        "--batches", default="1,8,32", metavar="ROWS,...", help="of solo"
    )
    parser.add_argument(
        "--window-s",
        type=_amount,
        default=1.0,
        metavar="S",
        help="of one window (default: 1)",
    )
    parser.add_argument(
        "--fake",
        action="store_true",
        help="a rehearsal: sleeping processes instead of PyTorch",
    )
    return parser


def missing_packages(*, needs_torch: bool) -> str:
    """What this Python lacks and what to do; empty = nothing."""
    if missing := [
        package
        for module, package in NEEDED.items()
        if importlib.util.find_spec(module) is None
    ]:
        return (
            f"{sys.executable} has no {', '.join(missing)}. Install from a folder of wheels that was carried along "
            f"(docs/measure.md): {sys.executable} -m pip install --no-index --find-links WHEELS "
            f"{' '.join(missing)}"
        )
    if needs_torch and (
        missing := [each for each in TORCH if importlib.util.find_spec(each) is None]
    ):
        return (
            f"{sys.executable} has no {' and no '.join(missing)}; call these scripts by the Python that has PyTorch "
            "for CUDA. `probe` needs none of it, --fake rehearses without"
        )
    return ""


def _numbers(parser: argparse.ArgumentParser, text: str) -> tuple[float, ...]:
    """`10,20,50`, ascending, each once."""
    try:
        return tuple(sorted({float(each) for each in text.split(",")}))
    except ValueError:
        parser.error(f"{text!r} is no list like 10,20,50")


def _options(
    parsed: argparse.Namespace,
    words: Sequence[str],
    shares: tuple[float, ...],
    batches: tuple[int, ...],
) -> "Options":
    from bench.real_gpu.run import Options

    return Options(
        out=parsed.out.resolve(),
        budget_s=parsed.budget_s,
        gpu=parsed.gpu,
        gpu_type=parsed.gpu_type,
        is_fake=parsed.fake,
        networks=tuple(parsed.networks.split(",")),
        shares=shares,
        batches=batches,
        window_s=parsed.window_s,
        command=f"python -m bench.real_gpu {shlex.join(_without_place(words, str(parsed.out)))}",
    )


def _without_place(words: Sequence[str], place: str) -> list[str]:
    """The words without this machine's path."""
    return [word.replace(place, "DIR") for word in words]


async def _steps(run: "Run", names: Sequence[str]) -> int:
    """The steps in order; SIGINT and SIGTERM end them with everything put away."""
    from agents.base.device import DeviceError
    from bench.real_gpu.source import STEPS as MODULES
    from bench.real_gpu.source import write_source

    measuring = asyncio.current_task()
    assert measuring is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, measuring.cancel)
    code = 0
    with contextlib.suppress(asyncio.CancelledError):
        for name in names:
            if run.left_s <= 0.0:
                run.say(
                    f"{name}: the budget is over before it: run the same command again"
                )
                code = code or LEFT_OVER
                continue
            run.say(f"== {name}")
            try:
                is_whole = await MODULES[name].measure(run)
            except DeviceError as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                code = 1
            else:
                code = code or (0 if is_whole else LEFT_OVER)
            write_source(run)
        return code
    write_source(run)
    run.say("interrupted; the same command goes on")
    return 130


def _say(words: str) -> None:
    print(words, flush=True)


def _amount(text: str) -> float:
    number = float(text)
    if not 0.0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    return number
