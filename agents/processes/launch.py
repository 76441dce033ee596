"""What it takes before a replica's process can start: a free port, its directory, its command and environment.

Launch                                   what to start, as its caller says
Ports(first, count).take(n, taken)       -> free ports of this machine
prepare(launch, template, Place)         -> Prepared(spawn, filled, template), files written
make_ready(template, Parameters, ...)    the same for whatever runs by a template
Crashes                                  which replicas fail again and again, and how long they must wait
"""

import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agents.base.backoff import delay_s
from agents.base.device import LaunchFailed
from agents.base.protocol import EngineCommand, ReplicaCommand
from agents.processes.process import HOST, Spawn
from agents.processes.records import R, Records
from agents.processes.templates import PASSED_ON, Filled, Parameters, Template
from agents.processes.user import WorkerUser, give_folder, write_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One replica to start."""

    replica: ReplicaCommand
    gpu_index: int
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the GPU's sharing asks for: MPS directories, share and memory limit."""
    template: str = ""
    """Empty: the network's."""
    gpu_memory_mib: float = 0.0
    """The entire GPU's memory; 0 = not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlace:
    """Where a replica is put."""

    name: str
    """The replica's or task's."""
    ports: tuple[int, ...]
    host: str = HOST
    """Where its server must listen."""
    directory: Path
    log: Path
    mark: str
    environment: Mapping[str, str]
    """The agent's own, of which some is passed on."""
    user: WorkerUser | None = None
    """Who it runs as; None: the agent's own user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A replica that only has to be started."""

    name: str
    """The replica's or task's."""
    serves: str
    """Its service; a task's own name."""
    spawn: Spawn
    filled: Filled
    template: Template
    engine: EngineCommand | None = None
    """A language model's: what it spans, and how long its streams last."""


def place_in(
    records: Records[R],
    replica_id: str,
    project: str,
    *,
    ports: tuple[int, ...],
    host: str,
    environment: Mapping[str, str],
) -> LaunchPlace:
    """The place of a project's replica or task whose record will be there."""
    return LaunchPlace(
        name=replica_id,
        ports=ports,
        host=host,
        directory=records.folder(replica_id),
        log=records.log(replica_id),
        mark=f"{records.mark}.{secrets.token_hex(8)}",
        environment=environment,
        user=records.users.of(project),
    )


def prepare(launch: Launch, template: Template, place: LaunchPlace) -> Prepared:
    """Command, environment and directory of a replica. Raises LaunchFailed."""
    replica = launch.replica
    parameters = Parameters(
        service=replica.service,
        network=replica.network,
        batch=replica.batch,
        sm_percent=replica.sm_percent,
        memory_mib=replica.memory_mib,
        gpu_memory_mib=launch.gpu_memory_mib,
        ports=place.ports,
        host=place.host,
        directory=str(place.directory),
        engine=replica.engine,
    )
    return make_ready(template, parameters, place, launch.environment)


def make_ready(
    template: Template,
    parameters: Parameters,
    place: LaunchPlace,
    given: Mapping[str, str],
    *,
    keeps_directory: bool = False,
) -> Prepared:
    """What runs by the template there, with the `given` variables. Raises LaunchFailed.

    `keeps_directory`: what an earlier process of the same name left there stays.
    """
    filled = template.fill(parameters)
    passed = (*PASSED_ON, *template.pass_environment)
    environment = {
        # Only what is listed: the agent's own environment may hold its token.
        name: place.environment[name]
        for name in passed
        if name in place.environment
    }
    environment |= place.user.environment() if place.user else {}
    # What sharing asks for comes last: no template may set a share or a device of its own.
    environment |= {**filled.environment, **given}
    try:
        if (
            place.log.exists()
        ):  # of an earlier process: its end must not be taken for this one's
            place.log.replace(place.log.with_suffix(".log.1"))
        # What an earlier replica of the same name left there must not be served by this one.
        give_folder(place.directory, place.user, keeps=keeps_directory)
        for name, text in filled.files.items():
            write_file(place.directory / name, text.encode())
    except OSError as error:
        raise LaunchFailed(
            f"directory {place.directory} cannot be made: {error}"
        ) from error
    spawn = Spawn(
        command=filled.command,
        environment=environment,
        directory=place.directory,
        log=place.log,
        mark=place.mark,
        user=place.user,
    )
    return Prepared(
        name=place.name,
        serves=parameters.service or parameters.task,
        spawn=spawn,
        filled=filled,
        template=template,
        engine=parameters.engine,
    )


class Ports:
    """A range of ports, taken in turn, so that one that somebody else wanted is not tried again at once."""

    def __init__(self, *, first: int, count: int) -> None:
        """Raises ValueError where these are no ports."""
        if first < 1 or count < 1 or first + count > 65536:
            raise ValueError(
                f"ports {first} to {first + count - 1} must lie within 1 to 65535"
            )
        self._first, self._count, self._next = first, count, 0

    def take(self, number: int, taken: Collection[int]) -> tuple[int, ...]:
        """Ports on which nothing listens and that are not `taken`. Raises LaunchFailed when there are too few."""
        found: list[int] = []
        for _ in range(self._count):
            if len(found) == number:
                break
            port = self._first + self._next
            self._next = (self._next + 1) % self._count
            # Both are asked, because a replica that was just started may not have bound its port yet.
            if port not in taken and _is_free(port):
                found.append(port)
        if len(found) < number:
            last = self._first + self._count - 1
            raise LaunchFailed(
                f"fewer than {number} of the ports {self._first} to {last} are free; see by `ss -ltnp` which processes "
                "hold them, and end or move them"
            )
        return tuple(found)


class Crashes:
    """Replicas that fail again and again, whether or not they were ready in between."""

    WINDOW_S = 600.0
    LOOP = 3
    """Failures within the window that make a loop."""
    FIRST_S = 10.0
    MAX_S = 300.0
    MAX_REMEMBERED = 1024
    """Replicas that are remembered; those that failed longest ago are forgotten first."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._times_s: dict[str, deque[float]] = {}

    def note(self, replica_id: str) -> str:
        """One more failure; says so in words when it makes a loop."""
        times_s = self._times_s.pop(replica_id, deque())
        times_s.append(self._now_s())
        # Taken out and put in again, so that the dictionary is in the order of the newest failures.
        self._times_s[replica_id] = times_s
        while len(self._times_s) > self.MAX_REMEMBERED:
            del self._times_s[next(iter(self._times_s))]
        hold_s = self.hold_s(replica_id)
        if hold_s <= 0.0:
            return ""
        return f"crash loop: {len(times_s)} failures in {self.WINDOW_S / 60.0:g} minutes, not before {hold_s:.0f} s"

    def hold_s(self, replica_id: str) -> float:
        """How long it must not be started yet; 0 = it may."""
        times_s = self._times_s.get(replica_id)
        if times_s is None:
            return 0.0
        now_s = self._now_s()
        while times_s and times_s[0] < now_s - self.WINDOW_S:
            times_s.popleft()
        if len(times_s) < self.LOOP:
            return 0.0
        wait_s = delay_s(
            len(times_s) - self.LOOP + 1, first_s=self.FIRST_S, longest_s=self.MAX_S
        )
        return max(0.0, times_s[-1] + wait_s - now_s)


def _is_free(port: int) -> bool:
    """Whether nothing listens there; connections that are over and still fade do not matter."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
