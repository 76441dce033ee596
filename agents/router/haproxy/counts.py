"""What HAProxy counted for each service, as the readings that agents send.

    read_counts(proxy) -> {backend: Counted}, since HAProxy's start
    Counter.read(…)    -> ServiceReadings since the last reading

HAProxy counts per backend, and a backend serves one service after the other: a reading is what its backend counted more
than before. It tells no latencies but a mean of its last 1024 answers, so readings have no latency buckets.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from agents.base.protocol import ServiceReading
from agents.router.haproxy.config import IN_SLO_TABLE
from agents.router.haproxy.process import HaProxy
from agents.router.haproxy.state import HaProxyError

_ENTRY = re.compile(r"key=(\S+) .*gpc0=(\d+)")
_GOOD = ("hrsp_1xx", "hrsp_2xx", "hrsp_3xx", "hrsp_4xx")
_COUNTS = (
    *("arrivals", "served", "rejected", "in_slo"),
    *("gone", "unmeasured", "output_tokens"),
)
_BAD = ("hrsp_5xx", "hrsp_other")
"""Those without any answer count as `other`, as when the client left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One backend since HAProxy's start."""

    arrivals: int = 0
    served: int = 0
    rejected: int = 0
    in_slo: int = 0
    gone: int = 0
    unmeasured: int = 0
    output_tokens: int = 0
    queued: int = 0
    """Now: requests that wait or run."""


NOTHING = Counted()


class _Metered(NamedTuple):
    """What `meter.lua` counted of one backend, in its order."""

    in_slo: int = 0
    """Streams and other answers of language models."""
    tokens: int = 0
    unmeasured: int = 0
    failed: int = 0
    """Streams in which the server told an error."""
    gone: int = 0
    """Clients that left before the SLO's latency was over; `left`: after it."""
    left: int = 0


def read_counts(proxy: HaProxy) -> dict[str, Counted]:
    """The counts of every backend. Raises HaProxyError."""
    stat = proxy.ask("show stat -1 2 -1")  # 2: backends only
    table = proxy.ask(f"show table {IN_SLO_TABLE}")
    return parse_counts(stat, table, proxy.ask("show meters"))


def parse_counts(stat: str, table: str, meters: str = "") -> dict[str, Counted]:
    """What `show stat`, `show table` and `show meters` say. Raises HaProxyError."""
    in_slo = {key: int(count) for key, count in _ENTRY.findall(table)}
    try:
        metered = dict(_metered(line.split()) for line in meters.splitlines() if line)
        rows = csv.DictReader(stat.removeprefix("# ").splitlines())
        return {
            (name := row["pxname"]): _counted(
                row, in_slo.get(name, 0), metered.get(name, _Metered())
            )
            for row in rows
        }
    except (KeyError, TypeError, ValueError) as error:
        raise HaProxyError(
            f"cannot read HAProxy's counts: {error!r} in {stat[:200]!r}"
        ) from error


def _metered(fields: list[str]) -> tuple[str, _Metered]:
    backend, *counts = fields
    return backend, _Metered(*map(int, counts))


def _counted(row: Mapping[str, str], in_slo: int, metered: _Metered) -> Counted:
    def total(*names: str) -> int:
        return sum(int(row[name] or 0) for name in names)

    # To HAProxy a client that left got a 400, or what it had begun to get.
    unserved = metered.failed + metered.gone + metered.left
    return Counted(
        arrivals=total("stot"),
        served=total(*_GOOD) - unserved,
        rejected=total(*_BAD) + metered.failed + metered.left,
        in_slo=in_slo + metered.in_slo,
        gone=metered.gone,
        unmeasured=metered.unmeasured,
        output_tokens=metered.tokens,
        queued=total("scur"),
    )


class Counter:
    """What was read before, by backend."""

    def __init__(self, before: Mapping[str, Counted]) -> None:
        """`before`: what HAProxy had counted when this agent took it over."""
        self._before = dict(before)

    def read(
        self, now: Mapping[str, Counted], backends: Mapping[str, str]
    ) -> tuple[ServiceReading, ...]:
        """The counts of every service, by name. `backends`: service → backend.

        One that counted less than before is not read: so does a HAProxy that was started again."""
        earlier, self._before = self._before, dict(now)
        readings = []
        for service, backend in sorted(backends.items()):
            before, counted = earlier.get(backend, NOTHING), now.get(backend, NOTHING)
            if counted.arrivals < before.arrivals:
                before = NOTHING
            reading = _reading(service, before, counted)
            # As reported so far: what was counted before the end of its answer, the next reading tells with it.
            reported = {
                name: getattr(before, name) + getattr(reading, name) for name in _COUNTS
            }
            self._before[backend] = replace(counted, **reported)
            readings.append(reading)
        return tuple(readings)


def _reading(service: str, before: Counted, now: Counted) -> ServiceReading:
    more = {
        name: max(0, getattr(now, name) - getattr(before, name)) for name in _COUNTS
    }
    more["in_slo"] = min(more["served"], more["in_slo"])
    return ServiceReading(service=service, queued=now.queued, **more)
