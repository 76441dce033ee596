"""What this machine has and does, tried: probe.csv (one row per question) and sm_table.csv (SMs by share).

Processes that ask CUDA itself (`client`) stand for replicas: what they see is what a replica would see.
"""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from agents.base.device import DeviceError, LaunchFailed
from agents.gpu.mps.sm_percent import objection
from agents.gpu.nvml.types import Capability
from agents.processes.procfs import MARK
from bench.real_gpu.client import NO_LIBRARY
from bench.real_gpu.reading import ReadNvml
from bench.real_gpu.run import Run, Session, python_path, under_mps, why_no_mps
from bench.real_gpu.tables import Table
from bench.report import Figure, Figures

FILE, TABLE_FILE = "probe.csv", "sm_table.csv"
COLUMNS = ("question", "answer", "detail")
TABLE_COLUMNS = (
    "gpu_type",
    "sm_percent",
    "sm_count",
    "sm_count_of_gpu",
    "is_as_expected",
    "detail",
)
NUMBERS = "driver_numbers_processes_as_here"
NO_NUMBERS = "the driver lists processes by other numbers than they have here: foreign ones are not noticed"
TABLE_SHARES = tuple(map(float, range(5, 101, 5)))
LIMIT_MIB, ASKED_MIB = 2048, 4096
START_S, ANSWER_S = 60.0, 60.0
SPIN_S = 5.0
FILES = {FILE: COLUMNS, TABLE_FILE: TABLE_COLUMNS}
HOW = (
    "Each share is given to a process of its own under MPS, which reads its multiprocessor count from the driver. "
    f"The memory limit is {LIMIT_MIB} MiB for a process that asks for {ASKED_MIB}. `terminate_client` is given for a "
    "process at work while another one works, which must go on."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One process of `client`."""

    process: asyncio.subprocess.Process
    pid: int
    sm_count: int

    async def tell(self, **order: float) -> None:
        """An order, without waiting for the answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            await self.process.stdin.drain()

    async def ask(self, **order: float) -> dict[str, int]:
        """The answer to an order; `error` in it is CUDA's number."""
        await self.tell(**order)
        return await _hear(self.process, ANSWER_S + order.get("work", 0.0))


async def measure(run: Run) -> bool:
    """All questions; they are asked again as long as one had no answer."""
    table = Table(run.path(FILE), COLUMNS)
    if not table.rows:
        rows = await _facts(run)
        if not await why_no_mps(run):
            async with under_mps(run) as session:
                rows += [
                    await ask(run, session)
                    for ask in (_numbers, _memory_limit, _terminate)
                ]
        table.replace(rows)
    for row in table.rows:
        run.say(
            f"  {row['question']}: {row['answer']}{' - ' if row['detail'] else ''}{row['detail']}"
        )
    return bool(await why_no_mps(run)) or await _sm_table(run)


async def _facts(run: Run) -> list[Figures]:
    sample = run.nvml.sample(run.gpu)
    why = await why_no_mps(run)
    facts: list[tuple[str, Figure, str]] = [
        (
            "gpu",
            run.gpu.name,
            f"{run.gpu.memory_mib:.0f} MiB, SMs: {run.gpu.sm_count or 'not told'}",
        ),
        ("driver_version", run.nvml.driver_version(), ""),
        ("mps", not why, why),
        ("gpm", *_can(run, Capability.SM_ACTIVITY)),
        ("counts_energy", *_can(run, Capability.COUNT_ENERGY)),
        ("lists_mps_clients", *_can(run, Capability.LIST_MPS)),
        ("power_limit_w", sample.enforced_limit_w, "as found; never changed"),
        ("idle_clock_mhz", sample.clock_mhz, ", ".join(sample.event_reasons)),
        (
            "cuda_checkpoint",
            shutil.which("cuda-checkpoint") is not None,
            "program in PATH",
        ),
        *(
            (name, _version(name), "")
            for name in ("torch", "torchvision", "nvidia-ml-py")
        ),
    ]
    return [
        {"question": question, "answer": answer, "detail": detail}
        for question, answer, detail in facts
    ]


def _can(run: Run, capability: Capability) -> tuple[bool, str]:
    try:
        run.nvml.check(run.gpu, capability)
    except DeviceError as error:
        return False, str(error)
    return True, ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def trusted_nvml(run: Run) -> ReadNvml:
    """NVML without its list of processes where the probe found that it knows ours by other numbers."""
    asked = Table(run.path(FILE), COLUMNS).rows
    if not any(row["question"] == NUMBERS and row["answer"] == "no" for row in asked):
        return run.nvml
    run.say(f"note: {NO_NUMBERS}")
    return run.nvml.without_processes(NO_NUMBERS)


async def _numbers(run: Run, session: Session) -> Figures:
    """Whether the driver lists a process by the number that it has here; in a container it may not."""
    try:
        async with _client(
            run, _environment(session, 50.0, float(LIMIT_MIB))
        ) as client:
            await client.ask(work=0.5)
            listed = sorted(each.pid for each in run.nvml.processes(run.gpu))
    except DeviceError as error:
        return {"question": NUMBERS, "answer": None, "detail": str(error)}
    words = f"process {client.pid} here; the driver lists {listed or 'none'}"
    return {
        "question": NUMBERS,
        "answer": client.pid in listed if listed else None,
        "detail": words,
    }


async def _memory_limit(run: Run, session: Session) -> Figures:
    """Whether a process gets no more than its limit, and gets what is below it."""
    environment = _environment(session, 50.0, float(LIMIT_MIB))
    try:
        async with _client(run, environment) as client:
            answer = await client.ask(take=float(ASKED_MIB))
    except LaunchFailed as error:
        return {
            "question": "memory_limit_is_kept",
            "answer": None,
            "detail": str(error),
        }
    if "error" in answer:
        return {
            "question": "memory_limit_is_kept",
            "answer": None,
            "detail": f"CUDA error {answer['error']}",
        }
    taken = answer["taken_mib"]
    words = f"{taken} MiB were granted of {ASKED_MIB} asked for under a limit of {LIMIT_MIB}"
    return {
        "question": "memory_limit_is_kept",
        "answer": taken <= LIMIT_MIB,
        "detail": words,
    }


async def _terminate(run: Run, session: Session) -> Figures:
    """Whether a client at work can be taken off the GPU while another goes on."""
    question = "terminate_client_harms_nobody_else"
    environment = _environment(session, 40.0, float(LIMIT_MIB))
    try:
        async with (
            _client(run, environment) as victim,
            _client(run, environment) as other,
        ):
            await victim.tell(work=SPIN_S)
            before = await other.ask(work=0.5)
            is_done = await session.mps.terminate(victim.pid)
            after = await other.ask(work=0.5)
            heard = await _hear(victim.process, SPIN_S + ANSWER_S)
    except DeviceError as error:
        return {"question": question, "answer": None, "detail": str(error)}
    words = (
        f"terminate_client {'answered 0' if is_done else 'did not answer 0'}; its client then said {heard}, the other "
        f"one {before} before and {after} after"
    )
    return {
        "question": question,
        "answer": is_done and "error" in heard and after.get("rounds", 0) > 0,
        "detail": words,
    }


async def _sm_table(run: Run) -> bool:
    """SMs by share, as far as time allows."""
    table = Table(run.path(TABLE_FILE), TABLE_COLUMNS)
    left = [share for share in TABLE_SHARES if not table.has(sm_percent=share)]
    if not left:
        return True
    async with under_mps(run) as session:
        whole = run.gpu.sm_count or await _seen_sms(run, session, 100.0)
        for share in left:
            if run.left_s <= 0.0:
                run.say(
                    f"the budget is over before the share of {share:g} %: run the same command again"
                )
                return False
            sms = await _seen_sms(run, session, share)
            why = objection(sms, whole, share)
            table.add(
                {
                    "gpu_type": run.gpu_type,
                    "sm_percent": share,
                    "sm_count": sms,
                    "sm_count_of_gpu": whole,
                    "is_as_expected": not why,
                    "detail": why,
                }
            )
    odd = [row["sm_percent"] for row in table.rows if row["is_as_expected"] == "no"]
    run.say(
        f"SMs by share: {len(table.rows)} shares, not as expected: {', '.join(odd) or 'none'}"
    )
    return True


async def _seen_sms(run: Run, session: Session, share: float) -> int:
    environment = _environment(session, share, run.gpu.memory_mib)
    async with _client(run, environment) as client:
        return client.sm_count


def _environment(
    session: Session, sm_percent: float, memory_mib: float
) -> Mapping[str, str]:
    """Of a client that ends with the session."""
    limits = session.mps.client_environment(
        sm_percent, memory_mib, is_best_effort=False
    )
    return {**limits, MARK: session.mark}


@contextlib.asynccontextmanager
async def _client(run: Run, environment: Mapping[str, str]) -> AsyncIterator[Client]:
    """A client that is up; it ends by the end of its input. Raises LaunchFailed."""
    process = await asyncio.create_subprocess_exec(
        *run.programs.client,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**run.environment, **environment, "PYTHONPATH": python_path(run)},
    )
    try:
        hello = await _hear(process, START_S)
        if "error" in hello:
            raise LaunchFailed(_why_no_cuda(hello))
        yield Client(process=process, pid=hello["pid"], sm_count=hello["sm_count"])
    finally:
        assert process.stdin is not None
        process.stdin.close()
        # One that hangs is ended with the session, after MPS has let go of it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await process.wait()


def _why_no_cuda(hello: Mapping[str, int]) -> str:
    if hello["error"] == NO_LIBRARY:
        return f"CUDA does not start: {hello['doing']}; is the driver's library in the loader's path?"
    return f"CUDA does not start in a client: error {hello['error']} of {hello['doing']} (docs/measure.md)"


async def _hear(process: asyncio.subprocess.Process, limit_s: float) -> dict[str, int]:
    """Its next line. Raises LaunchFailed when there is none."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(limit_s):
            line = await process.stdout.readline()
    except TimeoutError as error:
        raise LaunchFailed(
            f"process {process.pid} gave no answer in {limit_s:.0f} s"
        ) from error
    if not line:
        raise LaunchFailed(
            f"process {process.pid} ended without an answer; its complaint stands above"
        )
    message: dict[str, int] = json.loads(line)
    return message
