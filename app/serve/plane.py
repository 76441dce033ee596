"""Plane: what the API's process and the controller's share."""

import asyncio
import atexit
import contextlib
import ctypes
import gc
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from app.base.clock import ControlClock, WallClock
from app.base.settings import Settings
from app.db.maintenance import Retention
from app.kubernetes.cluster import Cluster, own_cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """What API and controller share."""

    settings: Settings
    url: str
    """SQLAlchemy's URL of a database at the newest revision."""
    clock: ControlClock
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    cluster: Cluster | None = None
    """None: this belongs to no Kubernetes cluster."""

    @property
    def retention(self) -> Retention:
        """How long rows are kept: what the leader deletes, and how far back the API can answer."""
        return Retention(
            observations_days=self.settings.retention_days,
            rates_days=self.settings.rates_days,
        )


def make_plane(
    settings: Settings, url: str | None = None, clock: ControlClock | None = None
) -> Plane:
    """The shared parts. Without `url` the settings say where the database is; it may be the embedded server.

    Raises PlimsollError where the settings name a cluster, and this is no Pod of one.
    """
    # First: what is wrong with it must not start a database.
    cluster = own_cluster(settings)
    return Plane(
        settings=settings,
        url=url or database_url(settings),
        clock=clock or WallClock(speed=settings.speed),
        cluster=cluster,
    )


GARBAGE_THRESHOLD = 20_000
"""New objects from one collection to the next; Python's own is 700, which suits programs with few objects."""


LARGE_BLOCK_BYTES = 128 * 1024
"""Blocks from this size on go back to the system when they are freed. glibc begins with that and raises it to 32 MiB as
a process frees larger ones, after which snapshots and plans of a large fleet leave 20 MiB of holes in each process."""
_M_MMAP_THRESHOLD = -3
"""From glibc's malloc.h."""


def settle_memory() -> None:
    """Leave what this process has loaded out of all later garbage collections, collect more rarely, and free large
    blocks at once.

    A full collection walks through everything that is left, the plans and observations of a large fleet too, and
    nothing is answered meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, *gc.get_threshold()[1:])
    # Other C libraries have no such setting, and no such holes.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def on_stop_signals(act: Callable[[], object]) -> None:
    """Do that when this process is asked to end, in place of ending at once."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, act)


def database_url(settings: Settings) -> str:
    """Where the database is: the setting, else the embedded server, which runs at least as long as this process."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    from app.postgres import server as postgres

    # At exit and not in a `with`: the server must outlive every event loop of this process.
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(postgres.in_use(settings.data_dir)).url
