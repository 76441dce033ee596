#!/usr/bin/env python3
"""A node with fake GPUs: the real agent on the fake driver and the fake MPS, and faults of it from outside.

    fake_node.py build DIRECTORY                   compile the fake driver into it
    fake_node.py run --library DIRECTORY [--gpus 2] -- plimsoll-agent --url ... --device gpu ...
    fake_node.py fault lost 0                      while it runs; `fault --help` names them all
    fake_node.py show                              what the driver holds now
    fake_node.py heal                              ends every fault

The GPUs live in a file of the state directory (`--state-dir`, by default the one this runs in), and so outlive the
agent as real ones do: clocks that it leaves locked are locked at its next start. `run` becomes the agent; of our own
worker and trainer it makes clients of the fake MPS. In the testbed this is the entry point of `agent-fake`.
"""

import argparse
import os
import pwd
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from tests.agents.fakes.mps_client import break_gpu  # noqa: E402  found by the line above
from tests.agents.fakes.nvml.fake_gpus import (  # noqa: E402
    NO_LIMIT_KEPT,
    STATE_VARIABLE,
    FakeGpus,
    build_library,
)

FILE = "fake-gpus"
TEMPLATES = """\
default = "own"
[tasks]
"default" = "own-trainer"

[templates.own]
command = ["{python}", "{here}/mps_worker.py", "--engine", "timed", "--times-ms", "1:20,8:22,64:70",
           "--service", "{{service}}", "--host", "{{host}}", "--port", "{{port}}", "--batch", "{{batch}}",
           "--drain-s", "5"]
start_limit_s = 60
drain_limit_s = 10

[templates.own-trainer]
server = "task"
command = ["{python}", "{here}/mps_trainer.py", "--task", "{{task}}", "--kind", "{{kind}}", "--network", "{{network}}",
           "--batch", "{{batch}}", "--iterations", "{{iterations}}", "--host", "{{host}}", "--port", "{{port}}",
           "--times-ms", "1:50",
           "--checkpoint", "{{directory}}/kept", "--checkpoint-s", "1"]
progress_file = "{{directory}}/kept"
start_limit_s = 60
drain_limit_s = 10
"""
LOST = 15
FALLEN_OFF = 79
"""The Xid of a GPU that fell off the bus."""
OVER = 1.5
"""What a board that keeps no limit draws at its highest clock, of its limit."""


def run(options: argparse.Namespace) -> None:
    """Become the agent, on the GPUs of the file; they are laid out where there are none yet."""
    state_dir = options.state_dir.absolute()
    state_dir.mkdir(parents=True, exist_ok=True)
    gpus = FakeGpus.found(state_dir / FILE)
    if gpus is None or gpus.state.gpu_count != options.gpus:
        gpus = FakeGpus(state_dir / FILE, count=options.gpus)
        for index in range(options.gpus):
            # Of this node alone: MPS of another's on this machine must not be taken for somebody else's on its GPUs.
            gpus.gpu(index).uuid = f"GPU-{uuid4()}".encode()
    gpus.state.now_ns = 0  # The real clock, which began again when the machine did.
    for index in range(options.gpus):
        gpus.gpu(index).energy_at_ns = time.monotonic_ns()
    templates = options.templates or state_dir / "templates.toml"
    if options.templates is None:
        templates.write_text(TEMPLATES.format(python=sys.executable, here=HERE))
        templates.chmod(0o600)
    program, *arguments = options.command
    environment = _environment(gpus, options.library)
    # The daemons of MPS apart from the agent.
    if arguments[:1] == ["mps"]:
        os.execvpe(program, options.command, environment)
    more = (
        "--device",
        "gpu",
        "--state-dir",
        str(state_dir),
        "--templates",
        str(templates),
        "--worker-user",
        pwd.getpwuid(os.geteuid()).pw_name,
    )
    os.execvpe(program, [program, *arguments, *more], environment)


def _environment(gpus: FakeGpus, library: Path) -> Mapping[str, str]:
    """In which the fake driver and the fake MPS are found before real ones."""
    path = os.pathsep.join((str(HERE), os.environ.get("PATH", os.defpath)))
    return {
        **gpus.environment(library.absolute()),
        STATE_VARIABLE: str(gpus.path),
        "PATH": path,
    }


def lose(gpus: FakeGpus, options: argparse.Namespace) -> None:
    """The GPU is gone from the bus."""
    gpus.gpu(options.gpu).lost = LOST


def refuse(gpus: FakeGpus, _: argparse.Namespace) -> None:
    """Clocks and power limits may not be written any more."""
    gpus.state.may_write = 0


def xid(gpus: FakeGpus, options: argparse.Namespace) -> None:
    """A critical error, which condemns the GPU until it is acquitted, where NVIDIA's catalogue says so."""
    gpus.happens(options.code, gpu=options.gpu)


def draw_too_much(gpus: FakeGpus, options: argparse.Namespace) -> None:
    """The board is fully loaded and keeps no power limit: only a lower clock helps."""
    gpu = gpus.gpu(options.gpu)
    gpu.without |= NO_LIMIT_KEPT
    gpu.power_busy, gpu.load_percent = int(gpu.power_default * OVER), 100


def reload(gpus: FakeGpus, _: argparse.Namespace) -> None:
    """The driver is loaded again: it forgets locks and limits, and ends every session."""
    gpus.reload()


def break_mps(_: FakeGpus, options: argparse.Namespace) -> None:
    """A client's fatal fault: all clients of the GPU's MPS server get an error that sticks."""
    break_gpu(str(options.state_dir.absolute() / "mps" / str(options.gpu) / "pipe"))


def fail(gpus: FakeGpus, options: argparse.Namespace) -> None:
    """A function of NVML answers with an error."""
    gpus.fail(options.function, options.code, times=options.times)


def heal(gpus: FakeGpus, _: argparse.Namespace) -> None:
    """Everything is well again, but for what the agent itself remembers: GPUs that an Xid condemned."""
    gpus.heal()
    gpus.state.may_write = 1
    for index in range(gpus.state.gpu_count):
        gpu = gpus.gpu(index)
        gpu.lost = gpu.load_percent = 0
        gpu.without &= ~NO_LIMIT_KEPT
        gpu.power_busy = gpu.power_default


def show(gpus: FakeGpus, _: argparse.Namespace) -> None:
    """One line per GPU."""
    rights = "may be written" if gpus.state.may_write else "may not be written"
    sys.stdout.write(
        f"driver {gpus.state.driver_version.decode()}, clocks and limits {rights}\n"
    )
    for index in range(gpus.state.gpu_count):
        gpu = gpus.gpu(index)
        clock = f"locked at {gpu.lock_high} MHz" if gpu.lock_high else "not locked"
        limit = f"{gpu.power_limit / 1000:g} W" + (
            ", not kept" if gpu.without & NO_LIMIT_KEPT else ""
        )
        words = f"{'LOST' if gpu.lost else 'there'}, clock {clock}, power limit {limit}, load {gpu.load_percent} %"
        sys.stdout.write(f"GPU {index} {gpu.uuid.decode()}: {words}\n")


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="fake_node.py", description=(__doc__ or "").partition("\n")[0]
    )
    parser.set_defaults(state_dir=Path())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="compile the fake driver")
    build.add_argument("directory", type=Path)
    build.set_defaults(do=lambda options: build_library(options.directory))
    start = commands.add_parser("run", help="become an agent on fake GPUs")
    start.add_argument(
        "--library",
        type=Path,
        required=True,
        help="folder that `build` compiled the fake driver into",
    )
    start.add_argument(
        "--gpus",
        type=int,
        choices=range(1, 17),
        default=2,
        metavar="COUNT",
        help="(default: 2)",
    )
    start.add_argument(
        "--templates",
        type=Path,
        help="programs of replicas and tasks (default: clients of the fake MPS)",
    )
    start.add_argument(
        "command",
        nargs="+",
        help="the agent's; device, state directory and templates are added",
    )
    start.set_defaults(do=run)
    _add_faults(
        commands.add_parser("fault", help="let something fail").add_subparsers(
            required=True, metavar="FAULT"
        )
    )
    for name, do, words in (
        ("heal", heal, "end every fault"),
        ("show", show, "what the driver holds now"),
    ):
        commands.add_parser(name, help=words).set_defaults(do=_on_gpus(do))
    for each in (
        start,
        *(commands.choices[name] for name in ("heal", "show", "fault")),
    ):
        each.add_argument(
            "--state-dir", type=Path, default=Path(), help="of the node (default: here)"
        )
    return parser


def _add_faults(faults: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for name, do, words in (
        ("lost", lose, "the GPU falls off the bus"),
        (
            "xid",
            xid,
            "a critical error, by NVIDIA's catalogue one that condemns the GPU or not",
        ),
        (
            "over-cap",
            draw_too_much,
            "the board is fully loaded and keeps no power limit",
        ),
        ("mps", break_mps, "a fatal fault of one of the GPU's MPS clients"),
    ):
        fault = faults.add_parser(name, help=words)
        fault.add_argument("gpu", type=int, help="index of the GPU")
        fault.set_defaults(do=_on_gpus(do))
        if name == "xid":
            fault.add_argument(
                "code",
                type=int,
                nargs="?",
                default=FALLEN_OFF,
                help="(default: %(default)s)",
            )
    faults.add_parser(
        "no-permission", help="clocks and power limits may not be written"
    ).set_defaults(do=_on_gpus(refuse))
    faults.add_parser("reload", help="the driver is loaded again").set_defaults(
        do=_on_gpus(reload)
    )
    call = faults.add_parser("call", help="a function of NVML answers with an error")
    call.add_argument("function", help="e.g. nvmlDeviceGetPowerUsage")
    call.add_argument(
        "code", type=int, help="e.g. 3 NOT_SUPPORTED, 4 NO_PERMISSION, 999 UNKNOWN"
    )
    call.add_argument("--times", type=int, default=-1, help="(default: until `heal`)")
    call.set_defaults(do=_on_gpus(fail))


def _on_gpus(
    do: Callable[[FakeGpus, argparse.Namespace], None],
) -> Callable[[argparse.Namespace], None]:
    def act(options: argparse.Namespace) -> None:
        gpus = FakeGpus.found(options.state_dir / FILE)
        if gpus is None:
            sys.exit(
                f"no fake GPUs in {options.state_dir.absolute()}; `run` makes them"
            )
        if getattr(options, "gpu", 0) not in range(gpus.state.gpu_count):
            sys.exit(
                f"no GPU {options.gpu}; this node has 0 to {gpus.state.gpu_count - 1}"
            )
        do(gpus, options)

    return act


def main(arguments: Sequence[str] | None = None) -> None:
    options = make_parser().parse_args(arguments)
    options.do(options)


if __name__ == "__main__":
    main()
