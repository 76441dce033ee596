"""`plimsoll trainer`: one training or offline task as a process, with swap hooks and a checkpoint.

    python -m agents.trainer.trainer --task nightly --kind training --network resnet50-training --batch 32 \
        --iterations 1000 --engine torch --factory-module torchvision.models --checkpoint /srv/kept/nightly

When it listens for its hooks it prints one line of JSON, {"url": ..., "pid": ...}; logs go to stderr. With --checkpoint
it goes on where an earlier process of the task stopped, on any node that sees the file. The file is a line of JSON that
says how many iterations are kept; PyTorch's state lies next to it as FILE.pt. Without one, training begins at 0; what
carries nothing from step to step goes on from --done-iterations.

SIGTERM keeps a checkpoint at the end of the step, wherever the memory is then. Exit codes: 0 after all iterations, 143
after SIGTERM, 1 when the work cannot begin, 2 for wrong arguments.
"""

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agents.base.arguments import add_listener, add_log_level, amount, integer
from agents.base.device import DeviceError
from agents.serving.arguments import add_engine
from agents.trainer.swap import SwapHooks
from agents.trainer.work import Work, _keep, kept_iterations

TERMINATED = 128 + signal.SIGTERM

log = logging.getLogger(__name__)


class TimedWork:
    """Takes time as measured, and computes nothing."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Raises LaunchFailed."""
        from agents.serving.engines.timed_engine import TimedEngine, read_times

        times = read_times(options.times_ms)
        engine = TimedEngine(times=times, sms=options.fake_sms, environment=os.environ)
        self.sm_count = engine.facts().sm_count
        self.start_iterations = max(
            int(options.done_iterations), kept_iterations(options)
        )
        self._step_s = times.ms(options.batch) / 1000.0

    def step(self) -> None:
        time.sleep(self._step_s)

    def keep(self, done_iterations: int) -> None:
        pass

    def offload(self) -> None:
        pass

    def resume(self) -> None:
        pass


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="plimsoll trainer",
        description="Run one training or offline task, which can give its GPU's memory back and take it again.",
    )
    _add_task(parser)
    _add_engine(parser)
    return parser


def _add_task(parser: argparse.ArgumentParser) -> None:
    task = parser.add_argument_group("task")
    task.add_argument("--task", required=True, help="its name")
    task.add_argument(
        "--kind",
        choices=("training", "offline"),
        default="training",
        help="(default: %(default)s)",
    )
    task.add_argument(
        "--network",
        required=True,
        help="its name; a function of --factory-module, without -training",
    )
    task.add_argument(
        "--batch",
        type=integer(1, 65536),
        default=1,
        help="of one iteration (default: %(default)s)",
    )
    task.add_argument(
        "--iterations", type=integer(1, 10**12), required=True, help="until it is done"
    )
    task.add_argument(
        "--done-iterations",
        type=amount(1e12),
        default=0.0,
        help="from where work without state goes on",
    )
    task.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="default: nothing is kept"
    )
    task.add_argument(
        "--checkpoint-s",
        type=amount(86400.0),
        default=30.0,
        help="between two (default: %(default)s)",
    )
    add_listener(task, host_help="for PUT /offload, /resume, GET /status")
    add_log_level(task)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    engine = add_engine(
        parser,
        engines=("timed", "torch"),
        memory_help="torch: most device memory it takes",
    )
    engine.add_argument(
        "--input",
        default="x:FP32:3,224,224",
        help="torch: one example (default: %(default)s)",
    )
    engine.add_argument(
        "--times-ms",
        default="1:10",
        metavar="BATCH:MS,...",
        help="timed (default: %(default)s)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.engine == "torch" and not options.factory_module:
        parser.error("--engine torch needs --factory-module, e.g. torchvision.models")
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        return run_trainer(options, make_work(options))
    except (DeviceError, OSError) as error:
        log.error("task %s cannot run: %s", options.task, error)
        return 1


def make_work(options: argparse.Namespace) -> Work:
    """What the arguments ask for. Raises LaunchFailed."""
    if options.engine == "timed":
        return TimedWork(options)
    # Imported here: PyTorch is an extra, and the timed engine does without.
    from agents.trainer.torch_trainer import TorchWork

    return TorchWork(options)


def run_trainer(options: argparse.Namespace, work: Work) -> int:
    """Work until all is done or SIGTERM comes; the exit code."""
    done, is_stopping = work.start_iterations, False
    hooks = SwapHooks(
        offload=work.offload,
        resume=work.resume,
        host=options.host,
        port=options.port,
        start_iterations=done,
        sm_count=work.sm_count,
    )

    def stop(*_: object) -> None:
        nonlocal is_stopping
        is_stopping = True
        hooks.leave()

    # The handler only sets a flag: the checkpoint is written at the end of a step, when the state is consistent.
    signal.signal(signal.SIGTERM, stop)
    log.info(
        "task %s goes on from iteration %d of %d",
        options.task,
        done,
        options.iterations,
    )
    kept_s = time.monotonic()
    with hooks:
        sys.stdout.write(json.dumps({"url": hooks.url, "pid": os.getpid()}) + "\n")
        # The starter of this waits for the line, which a buffer would hold back.
        sys.stdout.flush()
        while done < options.iterations and not is_stopping:
            work.step()
            done += 1
            hooks.step_boundary()
            # By time and not by steps: what may be lost is then bounded for slow and fast steps alike.
            if time.monotonic() - kept_s >= options.checkpoint_s:
                _keep(options, work, hooks, done)
                kept_s = time.monotonic()
        _keep(options, work, hooks, done)
    return 0 if done >= options.iterations else TERMINATED


if __name__ == "__main__":
    sys.exit(main())
