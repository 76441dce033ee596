"""A bench: one network's engine in a process of its own, which runs batches back to back and times them.

`python -m agents.profiling OPTIONS`, with the options of `plimsoll worker`; it listens nowhere and speaks by `messages`
over standard input and output. The time of a batch is that of `engine.run`, inputs to the device and outputs back
included: what a worker reports as execution time. What libraries print goes to standard error.
"""

import argparse
import contextlib
import gc
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from random import Random
from typing import TypeAlias

import msgspec

from agents.base.device import DeviceError
from agents.profiling.messages import (
    MAX_BATCHES,
    Answer,
    Exit,
    Failed,
    LoadBatch,
    Loaded,
    Order,
    Ready,
    RunWindow,
    Timed,
    UnloadBatch,
    Unloaded,
)
from agents.serving.engines.engine import Engine, Signature
from agents.serving.engines.errors import EngineLost
from agents.serving.engines.tensors import (
    Tensor,
    Tensors,
    TensorType,
    byte_count,
    pack_numbers,
)

MAX_PROBLEM = 500
MakeEngine: TypeAlias = Callable[[argparse.Namespace, Mapping[str, str]], Engine]

log = logging.getLogger(__name__)


def main(
    arguments: Sequence[str] | None = None,
    make_engine: MakeEngine | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> int:
    """Entry point; the exit code. `make_engine`: by default the worker's."""
    from agents.serving.arguments import make_parser
    from agents.serving.process import make_engine as worker_engine

    options = make_parser().parse_args(arguments)
    if options.batch_limit is None:
        options.batch_limit = max(1024, options.batch)
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    # From here on nothing but messages may reach the profiler: a library that prints a banner would break the protocol.
    with _own_output() as output:
        bench = EngineBench(
            say=_teller(output),
            orders=_Orders(io.FileIO(0, closefd=False)),
            now_s=now_s,
        )
        # The engine is made within `run`, so that its failure is reported as a message, too.
        return bench.run(lambda: (make_engine or worker_engine)(options, os.environ))


@dataclass(slots=True)
class _Orders:
    """Orders from a stream, read in a thread, so that its end is noticed while batches run.

    Unbuffered: a thread that waits in a buffered reader would keep the interpreter from ending.
    """

    stream: io.RawIOBase
    is_over: threading.Event = field(default_factory=threading.Event)
    _lines: "SimpleQueue[bytes]" = field(default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        # Never joined: it may wait in a read for as long as the profiler lives, and a daemon thread does not
        # keep the process.
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def next(self) -> Order | None:
        """The next order; None when no more can come. Raises DecodeError."""
        line = self._lines.get()
        return msgspec.json.decode(line, type=Order) if line else None

    def _read(self) -> None:
        for line in self.stream:
            self._lines.put(line)
        # Set before the empty line that wakes the reader, so that a batch that runs right now is the last one.
        self.is_over.set()
        self._lines.put(b"")


@dataclass(slots=True, kw_only=True)
class EngineBench:
    """One engine and what is done with it."""

    say: Callable[[Answer], None]
    orders: _Orders
    now_s: Callable[[], float] = time.monotonic
    _signature: Signature = field(default_factory=Signature)
    _inputs: Sequence[Tensors] = ()

    def run(self, make: Callable[[], Engine]) -> int:
        """Load, then do as ordered until the end; the exit code."""
        try:
            engine = make()
            self._signature = engine.load()
            # Some engines take the device only with their first batch.
            engine.warm_up(1)
            facts = engine.facts()
            self.say(
                Ready(pid=os.getpid(), device=facts.device, sm_count=facts.sm_count)
            )
        except Exception as error:  # A network's own code raises what it likes.
            self.say(_failed(error, is_lost=True))
            return 1
        # A collection in the middle of a window would be timed as part of a batch.
        gc.collect()
        gc.disable()
        while (order := self.orders.next()) is not None and not isinstance(order, Exit):
            answer = self._answer(engine, order)
            self.say(answer)
            if isinstance(answer, Failed) and answer.is_lost:
                return 1
        return 0

    def _answer(
        self, engine: Engine, order: LoadBatch | RunWindow | UnloadBatch
    ) -> Answer:
        try:
            match order:
                case LoadBatch():
                    return self._load(engine, order)
                case RunWindow():
                    return self._window(engine, order)
                case UnloadBatch():
                    self._unload(engine)
                    return Unloaded()
        except (
            Exception
        ) as error:  # Out of memory and the like: told, and on to the next batch size.
            self._inputs = ()
            return _failed(error, is_lost=isinstance(error, EngineLost))

    def _load(self, engine: Engine, order: LoadBatch) -> Loaded:
        """Memory that the batch before took is given back first, so that this batch's is seen."""
        self._unload(engine)
        engine.resume()
        self._inputs = make_inputs(self._signature, order.rows)
        batch_ms = 0.0
        for number in range(max(1, order.warm_up)):
            batch_ms = self._batch_ms(engine, number)
        return Loaded(batch_ms=batch_ms, memory_mib=engine.facts().memory_mib)

    def _unload(self, engine: Engine) -> None:
        self._inputs = ()
        # Offloading empties the allocator's cache, whose blocks for a larger batch would count as the next batch's.
        engine.offload()
        gc.collect()

    def _window(self, engine: Engine, order: RunWindow) -> Timed:
        if not self._inputs:
            raise DeviceError("no batch is loaded")
        while (
            wait_s := order.start_s - self.now_s()
        ) > 0.0 and not self.orders.is_over.is_set():
            # All benches of a cell share one clock and begin together; a millisecond is short next to the part
            # that is skipped.
            time.sleep(min(0.001, wait_s))
        counts_s = order.start_s + order.skip_s
        end_s = order.start_s + order.window_s
        latencies_ms: list[float] = []
        number = 0
        while (begun_s := self.now_s()) < end_s and not self.orders.is_over.is_set():
            batch_ms = self._batch_ms(engine, number)
            number += 1
            # One that ends after the window may have run alone at its end.
            if (
                begun_s >= counts_s
                and begun_s + batch_ms / 1000.0 <= end_s
                and len(latencies_ms) < MAX_BATCHES
            ):
                # Five decimals are 10 ns, more than the clock is good for, and halve the length of the line.
                latencies_ms.append(round(batch_ms, 5))
        return Timed(latencies_ms=tuple(latencies_ms))

    def _batch_ms(self, engine: Engine, number: int) -> float:
        inputs = self._inputs[number % len(self._inputs)]
        begun_s = self.now_s()
        engine.run(inputs)
        return (self.now_s() - begun_s) * 1000.0


def _failed(error: Exception, *, is_lost: bool) -> Failed:
    log.warning("it failed: %s", error, exc_info=not isinstance(error, DeviceError))
    problem = " ".join(str(error).split())
    return Failed(
        problem=f"{type(error).__name__}: {problem}"[:MAX_PROBLEM], is_lost=is_lost
    )


@contextlib.contextmanager
def _own_output() -> Iterator[io.RawIOBase]:
    """Standard output for messages alone; what anybody else prints goes to standard error."""
    sys.stdout.flush()
    # Libraries in C write to descriptor 1 and not to sys.stdout, so the descriptor itself is redirected.
    kept = os.dup(1)
    os.dup2(2, 1)
    with io.FileIO(kept, "w") as stream:
        yield stream


def _teller(output: io.RawIOBase) -> Callable[[Answer], None]:
    def say(answer: Answer) -> None:
        # A profiler that is gone hears nothing; the end of its orders ends this process.
        with contextlib.suppress(BrokenPipeError):
            left = memoryview(msgspec.json.encode(answer) + b"\n")
            while left:
                left = left[output.write(left) or 0 :]

    return say


SETS = 4
"""Input sets that take turns, so that no cache holds the next one."""
MAX_BYTES = 512 * 1024 * 1024
"""Limit of the size of all sets together, which one set alone may exceed."""
OPEN_LENGTH = 128
"""Taken where a network leaves the length of a dimension open: tokens of a short text."""
_BLOCK = 4096
"""Numbers that are drawn; larger tensors repeat them, as drawing millions would take seconds."""
_ANY = TensorType(name="x", datatype="UINT8", row_shape=(16,))
"""For an engine that takes anything."""


def make_inputs(signature: Signature, rows: int, *, seed: int = 0) -> Sequence[Tensors]:
    """One to four sets of inputs with this number of rows."""
    kinds = signature.inputs or (_ANY,)
    random = Random(f"{seed}/{rows}")
    set_bytes = sum(byte_count(each.datatype, _shape(each, rows)) for each in kinds)
    # One set is made even where it alone is above the limit: a batch without inputs cannot run.
    sets = max(1, min(SETS, MAX_BYTES // max(1, set_bytes)))
    return [tuple(_tensor(each, rows, random) for each in kinds) for _ in range(sets)]


def _shape(kind: TensorType, rows: int) -> tuple[int, ...]:
    return rows, *(OPEN_LENGTH if length == -1 else length for length in kind.row_shape)


def _tensor(kind: TensorType, rows: int, random: Random) -> Tensor:
    shape = _shape(kind, rows)
    length = byte_count(kind.datatype, shape)
    drawn = pack_numbers(
        kind.datatype, [_number(kind.datatype, random) for _ in range(_BLOCK)]
    )
    data = (drawn * -(-length // len(drawn)))[:length]
    return Tensor(name=kind.name, datatype=kind.datatype, shape=shape, data=data)


def _number(datatype: str, random: Random) -> float:
    """A normally distributed number; for integers one from 0 to 99, as embeddings have at least that number of rows."""
    if datatype.startswith("FP"):
        return random.gauss(0.0, 1.0)
    return bool(random.getrandbits(1)) if datatype == "BOOL" else random.randrange(100)
