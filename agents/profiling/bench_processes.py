"""The benches of a cell as processes: started with their shares, proven, spoken to, ended.

    async with open_benches(bench_set, site) as benches:
        await benches[0].ask(order, kind, limit_s=…)     in the order of the set
    async with BenchPool(site=site) as pool:
        benches = await pool.take(bench_set)             the same; some may be up since an earlier set

A bench gets the environment that a replica of its share would get, and must prove the share before anything is timed.
It ends by protocol; only one that does not is taken off the GPU by MPS and killed.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from agents.base.device import DeviceError, LaunchFailed
from agents.base.protocol import ReplicaCommand
from agents.gpu.mps.gpu_sharing import Sharing
from agents.gpu.nvml.types import GpuIdentity
from agents.processes.launch import Launch, LaunchPlace, prepare
from agents.processes.logs import tail
from agents.processes.process import Ending, Spawn, end_left_over, exit_reason
from agents.processes.procfs import MARK, host_memory_used
from agents.processes.templates import Template, Templates
from agents.profiling.cells import BenchFailed, BenchLost, BenchSet, BenchSettings
from agents.profiling.messages import (
    MAX_LINE,
    Answer,
    Exit,
    Failed,
    Order,
    Ready,
    UnloadBatch,
    Unloaded,
)
from agents.replicas.replica import Proof

WORKER = "agents.serving"
BENCH = "agents.profiling"
NO_PORT = 9
"""Filled in where a template wants ports: a bench listens nowhere."""
FULL = 0.5
"""Share of the memory in use, the GPU's or the machine's, above which benches that only wait are ended."""
UNLOAD_S = 60.0
"""For a bench to give its batch back, which takes milliseconds."""
END_S = 15.0
"""For a bench to end by itself: it may be in a batch, and frees its GPU memory."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where benches run."""

    gpu: GpuIdentity
    templates: Templates
    template: str
    """The template of all networks; empty: each network's own."""
    sharing: Sharing
    directory: Path
    """Where their logs and files lie."""
    mark: str
    """Beginning of the mark of every process of this profile."""
    environment: Mapping[str, str]
    """The profiler's own, of which some is passed on."""
    largest_batch: int = 1


@dataclass(slots=True, kw_only=True, eq=False)
class BenchProcess:
    """One bench that runs."""

    settings: BenchSettings
    process: asyncio.subprocess.Process
    mark: str
    log: Path
    ready: Ready | None = None

    async def ask(
        self, order: Order, kind: type[_Answer], *, limit_s: float
    ) -> _Answer:
        """Its answer to an order. Raises BenchFailed, or BenchLost after which it must be ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(order) + b"\n")
            await self.process.stdin.drain()
        except ConnectionError as error:
            raise BenchLost(await self._how()) from error
        return await self.hear(kind, limit_s=limit_s)

    async def hear(self, kind: type[_Answer], *, limit_s: float) -> _Answer:
        """What it says next. Raises BenchFailed or BenchLost."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                line = await self.process.stdout.readline()
            answer: Answer | None = (
                msgspec.json.decode(line, type=Answer) if line else None
            )
        except TimeoutError as error:
            raise BenchLost(
                f"{self.settings.network} gave no answer in {limit_s:.0f} s{self._log_end()}"
            ) from error
        except (msgspec.MsgspecError, ValueError) as error:
            raise BenchLost(
                f"{self.settings.network} says what is none of our messages: {error}"
            ) from error
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Failed):
            problem = f"{self.settings.network}: {answer.problem}"
            # A bench that only lacks memory for this batch serves the next cell; one whose engine is lost does not.
            raise BenchLost(problem) if answer.is_lost else BenchFailed(problem)
        raise BenchLost(
            await self._how()
            if answer is None
            else f"{self.settings.network} answers out of turn: {answer}"
        )

    async def end(self, sharing: Sharing) -> None:
        """Return when all its processes are gone. Raises LaunchFailed with those that do not end."""
        stdin = self.process.stdin
        assert stdin is not None
        with contextlib.suppress(ConnectionError):
            stdin.write(msgspec.json.encode(Exit()) + b"\n")
            # The end of its input ends it as well, should it have been too busy to read the order.
            stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self.process.wait()
        if not await end_left_over(
            # Its children carry the same mark, so those that outlived it are found, too. It had its grace above.
            self.mark,
            Ending(grace_s=0.0, terminate=sharing.terminate_clients),
        ):
            raise LaunchFailed(
                f"processes of {self.settings.network} did not end after SIGKILL; the GPU may need a reset"
            )
        await self.process.wait()

    async def _how(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self.process.wait()
        code = self.process.returncode
        how = "it closed its output" if code is None else exit_reason(code)
        return f"the process of {self.settings.network} is lost: {how}{self._log_end()}"

    def _log_end(self) -> str:
        return f"; its log ends: {text}" if (text := tail(self.log)) else ""


@contextlib.asynccontextmanager
async def open_benches(
    bench_set: BenchSet, site: Site
) -> AsyncIterator[tuple[BenchProcess, ...]]:
    """The benches of a set; none of their processes is left afterwards. Raises LaunchFailed or DeviceError."""
    async with BenchPool(site=site) as pool:
        yield await pool.take(bench_set)


@dataclass(slots=True, kw_only=True)
class BenchPool:
    """Benches that stay up for later sets: starting one takes seconds, and a bench without work disturbs no other.

    None of their processes is left behind `async with`.
    """

    site: Site
    _up: list[BenchProcess] = field(default_factory=list)
    _starts: int = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end(self._up)

    async def take(self, bench_set: BenchSet) -> tuple[BenchProcess, ...]:
        """The benches of a set in its order, started where they are not up.

        Raises LaunchFailed or DeviceError; those that were started for it have ended then.
        """
        kept = self._find(bench_set)
        started: list[BenchProcess] = []
        try:
            for settings, bench in zip(bench_set, kept, strict=True):
                # All are started before the first is waited for: they load at the same time.
                if bench is None:
                    started.append(await self._start(settings))
            for bench in started:
                await _bring_up(bench, self.site)
        except Exception:
            # So that the next set of benches finds the GPU's memory free.
            await self.end(started)
            raise
        fresh = iter(started)
        return tuple(bench or next(fresh) for bench in kept)

    def is_up(self, bench_set: BenchSet) -> bool:
        """Whether a bench of the set is up already."""
        return any(self._find(bench_set))

    async def unload(self, benches: Sequence[BenchProcess]) -> None:
        """Let those of them that are up give back their batches, as others are measured now."""
        await asyncio.gather(
            *(self._unload(each) for each in benches if each in self._up)
        )

    async def make_room(
        self,
        bench_set: BenchSet,
        later: Sequence[BenchSet],
        memory_used_mib: Callable[[], Awaitable[float]],
    ) -> None:
        """End the others that no later set needs; while GPU or machine are full, also those that are needed last."""

        def needed_at(bench: BenchProcess) -> float:
            sets = (at for at, each in enumerate(later) if bench.settings in each)
            return next(sets, math.inf)

        waiting = sorted(self._others(self._find(bench_set)), key=needed_at)
        while waiting and (
            math.isinf(needed_at(waiting[-1])) or await self._is_full(memory_used_mib)
        ):
            await self.end([waiting.pop()])

    async def end_others(self, benches: Sequence[BenchProcess] = ()) -> bool:
        """End all but these; whether there were any."""
        others = self._others(benches)
        await self.end(others)
        return bool(others)

    async def end(self, benches: Sequence[BenchProcess]) -> None:
        """End those that are up. Raises LaunchFailed with one that does not end."""
        ending = [bench for bench in benches if bench in self._up]
        self._up = self._others(ending)
        await asyncio.gather(*(each.end(self.site.sharing) for each in ending))

    async def _start(self, settings: BenchSettings) -> BenchProcess:
        self._starts += 1
        bench = await _start(settings, self._starts, self.site)
        self._up.append(bench)
        return bench

    async def _is_full(self, memory_used_mib: Callable[[], Awaitable[float]]) -> bool:
        used = await memory_used_mib() / self.site.gpu.memory_mib
        # A process of PyTorch takes 2 GiB and more of the machine's memory, too.
        return max(used, host_memory_used()) > FULL

    async def _unload(self, bench: BenchProcess) -> None:
        try:
            await bench.ask(UnloadBatch(), Unloaded, limit_s=UNLOAD_S)
        except BenchFailed:
            await self.end([bench])

    def _find(self, bench_set: BenchSet) -> list[BenchProcess | None]:
        """Who is up for each place of the set; a process has one place, also where a network is next to itself."""
        free, found = list(self._up), []
        for settings in bench_set:
            bench = next((each for each in free if each.settings == settings), None)
            if bench is not None:
                free.remove(bench)
            found.append(bench)
        return found

    def _others(self, benches: Sequence[BenchProcess | None]) -> list[BenchProcess]:
        return [bench for bench in self._up if bench not in benches]


def find_template(templates: Templates, name: str, network: str) -> Template:
    """The template by which a network is measured; `name` empty: the network's own. Raises LaunchFailed."""
    template = templates.find(network, name)
    if template.server != "worker":
        raise LaunchFailed(
            f"template {template.name} of network {network} runs {template.server}; only our own worker tells the time "
            "of a batch: give --template with one of `plimsoll worker`, or import that server's own figures by "
            "`plimsoll samples convert`"
        )
    # Called for its error: a template that runs something else must be refused before anything is started.
    bench_command(template.command)
    return template


def bench_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command of a worker as that of a bench with the same options. Raises LaunchFailed where it is none."""
    for place in range(1, len(command)):
        if command[place - 1 : place + 1] == ("-m", WORKER):
            return (*command[:place], BENCH, *command[place + 1 :])
        if Path(command[place - 1]).name == "plimsoll" and command[place] == "worker":
            # The interpreter of the same installation lies next to the script.
            python = str(Path(command[place - 1]).with_name("python"))
            return (*command[: place - 1], python, "-m", BENCH, *command[place + 1 :])
    raise LaunchFailed(
        f"{' '.join(command[:4])} … is not our worker: a template to profile must run `python -m {WORKER}` or "
        "`plimsoll worker`"
    )


async def _start(settings: BenchSettings, number: int, site: Site) -> BenchProcess:
    template = find_template(site.templates, site.template, settings.network)
    name = f"bench{number}"
    replica = ReplicaCommand(
        id=name,
        # A bench serves no requests: the service is only a name that templates may fill in.
        service=settings.network,
        network=settings.network,
        sm_percent=settings.sm_percent,
        batch=site.largest_batch,
        # No limit below the whole memory: how much a batch needs is one of the things that are measured.
        memory_mib=site.gpu.memory_mib,
        arrival_rate_rps=0.0,
    )
    launch = Launch(
        replica=replica,
        gpu_index=site.gpu.index,
        environment=await site.sharing.environment(replica),
        template=template.name,
        gpu_memory_mib=site.gpu.memory_mib,
    )
    place = LaunchPlace(
        name=name,
        ports=(NO_PORT,) * len(template.ports),
        directory=site.directory / name,
        log=site.directory / f"{name}.log",
        mark=f"{site.mark}.{name}",
        environment=site.environment,
    )
    return await _spawn(settings, prepare(launch, template, place).spawn)


async def _spawn(settings: BenchSettings, spawn: Spawn) -> BenchProcess:
    command = bench_command(spawn.command)
    try:
        with spawn.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=spawn.directory,
                env={**spawn.environment, MARK: spawn.mark},
                limit=MAX_LINE,
                # Ctrl-C at a terminal is the profiler's: benches end by protocol.
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchFailed(f"{command[0]} cannot be started: {error}") from error
    return BenchProcess(
        settings=settings, process=process, mark=spawn.mark, log=spawn.log
    )


async def _bring_up(bench: BenchProcess, site: Site) -> None:
    """Loaded, with its share in force. Raises LaunchFailed."""
    limit_s = find_template(
        site.templates, site.template, bench.settings.network
    ).start_limit_s
    try:
        bench.ready = await bench.hear(Ready, limit_s=limit_s)
    except BenchFailed as error:
        raise LaunchFailed(
            f"the bench of {bench.settings.network} does not come up: {error}"
        ) from error
    proof = Proof(
        id=bench.settings.network,
        gpu_index=site.gpu.index,
        sm_percent=bench.settings.sm_percent,
        sm_count=bench.ready.sm_count,
        pids=(bench.ready.pid,),
    )
    try:
        why = await site.sharing.objection(proof)
    except DeviceError as error:
        why = str(error)
    if why:
        raise LaunchFailed(
            f"the share of {bench.settings.network} is not in force, so nothing was measured: {why}"
        )
