"""Runs a command while random processes of it stand still for moments: tests that go by time fail.

    python -m tools.stops [--seed 1] [--at-once 3] [--most-s 5] make test

Its processes are all that descend from it, and those of PostgreSQL servers that were started since, which leave their
parents. Prints how many were stopped, and ends with the command's exit code.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from random import Random

import psutil

SHORTEST_S = 0.3
PAUSE_S = (0.1, 1.0)
"""Between two stops of one thread."""


def processes_of(command: psutil.Process) -> Iterator[psutil.Process]:
    """Those that may be stopped now; the command itself is not, so that its end is seen."""
    yield from command.children(recursive=True)
    for each in psutil.process_iter(["name", "create_time"]):
        is_younger = each.info["create_time"] >= command.create_time()
        if is_younger and each.info["name"] == "postgres":
            server = each.parent()
            # Of a server that was there before, its new processes are younger, too.
            if (
                server is None
                or server.name() != "postgres"
                or server.create_time() >= command.create_time()
            ):
                yield each


def stop_some(
    command: psutil.Process, random: Random, most_s: float, is_over: threading.Event
) -> int:
    """Stop one process after the other until the command has ended; how many."""
    count = 0
    while not is_over.wait(random.uniform(*PAUSE_S)):
        with contextlib.suppress(psutil.Error, IndexError):
            chosen = random.choice(list(processes_of(command)))
            chosen.send_signal(signal.SIGSTOP)
            try:
                is_over.wait(random.uniform(SHORTEST_S, most_s))
            finally:
                chosen.send_signal(signal.SIGCONT)
            count += 1
    return count


def main() -> int:
    """The command's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.stops", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=3, help="processes that stand")
    parser.add_argument("--most-s", type=float, default=5.0, help="the longest stop")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("name a command, for example: make test")
    # As Ctrl-C: what stands still then goes on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_over, counts = threading.Event(), list[int]()
    with subprocess.Popen(options.command) as running:
        command = psutil.Process(running.pid)

        def work(seed: int) -> None:
            counts.append(stop_some(command, Random(seed), options.most_s, is_over))

        seeds = range(options.seed, options.seed + options.at_once)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in seeds]
        for each in threads:
            each.start()
        try:
            code = running.wait()
        finally:
            is_over.set()
            for each in threads:
                each.join()
    sys.stderr.write(f"{sum(counts)} stops, seed {options.seed}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
