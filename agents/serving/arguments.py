"""The arguments of `plimsoll worker` and `python -m agents.serving`; the rest is imported when they are right.

Exit codes: 0 after SIGTERM or SIGINT with everything answered, 1 when the engine cannot be loaded or is lost or when
requests were still open at the end of the drain, 2 for wrong arguments.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from agents.base.arguments import add_listener, add_log_level, amount, integer

EXAMPLES = """\
examples:
  plimsoll worker --service chat --times-ms 1:5,8:12 --port 8100 --batch 8 --delay-ms 2
  plimsoll worker --service resnet --engine onnx --network-dir networks --network resnet50.onnx --batch 8
  plimsoll worker --service resnet --engine torch --factory-module torchvision.models --network resnet50 \\
      --weights resnet50.pt --network-dir networks --input x:FP32:3,224,224
"""


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="plimsoll worker",
        description="Serve one replica by the Open Inference Protocol v2, in batches whose size changes while it runs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_serving(parser)
    _add_engine(parser)
    return parser


def _add_serving(parser: argparse.ArgumentParser) -> None:
    serve = parser.add_argument_group("serving")
    serve.add_argument(
        "--service",
        required=True,
        help="name of the service, as in /v2/models/{name}/infer",
    )
    add_listener(serve, host_help="address to listen on")
    serve.add_argument(
        "--batch",
        type=integer(1, 65536),
        default=1,
        help="maximum number of rows in a batch (default: %(default)s)",
    )
    serve.add_argument(
        "--delay-ms",
        type=amount(10_000.0),
        default=0.0,
        help="longest wait for a full batch",
    )
    serve.add_argument(
        "--batch-limit",
        type=integer(1, 65536),
        help="highest value that --batch can be changed to (default: 1024, or --batch)",
    )
    serve.add_argument(
        "--queue",
        type=integer(1, 65536),
        default=256,
        help="maximum number of waiting requests (default: %(default)s)",
    )
    serve.add_argument(
        "--drain-s",
        type=amount(3600.0),
        default=30.0,
        help="after SIGTERM, for open requests (default: %(default)s)",
    )
    add_log_level(serve)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    engine = add_engine(
        parser,
        engines=("timed", "torch", "onnx"),
        memory_help="device memory limit of the engine; timed: only reported",
    )
    engine.add_argument(
        "--network",
        help="torch, onnx: a file in --network-dir, or with --factory-module its function",
    )
    engine.add_argument(
        "--network-dir", type=Path, help="the only directory that files are loaded from"
    )
    engine.add_argument(
        "--weights",
        help="torch: state dictionary for the factory's network, in --network-dir",
    )
    engine.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME:DATATYPE:SHAPE",
        help="torch: an input without its rows, x:FP32:3,224,224; in the order of the network's arguments",
    )
    engine.add_argument(
        "--threads",
        type=integer(1, 1024),
        default=1,
        help="CPU threads of a batch (default: 1)",
    )
    times = engine.add_mutually_exclusive_group()
    times.add_argument(
        "--times-ms", metavar="ROWS:MS,...", help="timed: measured times (default: 1:1)"
    )
    times.add_argument(
        "--times-csv",
        type=Path,
        help="timed: a file with the columns batch, execution_ms",
    )


def add_engine(
    parser: argparse.ArgumentParser, *, engines: tuple[str, ...], memory_help: str
) -> argparse._ArgumentGroup:
    """The group of an engine's options, with those that workers and trainers have in common."""
    engine = parser.add_argument_group("engine")
    # The default computes nothing, so that a worker can be tried without any network or GPU.
    engine.add_argument("--engine", choices=engines, default="timed")
    engine.add_argument(
        "--factory-module",
        help="torch: module whose functions make networks: torchvision.models",
    )
    engine.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="(default: %(default)s)",
    )
    engine.add_argument("--memory-mib", type=amount(1e9), help=memory_help)
    engine.add_argument(
        "--fake-sms", type=integer(2, 1024), help="timed: multiprocessors of a fake GPU"
    )
    return engine


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.batch_limit is None:
        options.batch_limit = max(1024, options.batch)
    if options.batch > options.batch_limit:
        parser.error(
            f"--batch {options.batch} is above --batch-limit {options.batch_limit}"
        )
    if options.engine != "timed" and not options.network:
        parser.error(f"--engine {options.engine} needs --network")
    # Imported late: aiohttp alone takes longer than --help may.
    from agents.serving.process import run_worker

    return run_worker(options)
