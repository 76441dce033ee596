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

from agents.base.protocol import ServiceReading
from agents.router.haproxy.config import IN_SLO_TABLE
from agents.router.haproxy.process import HaProxy
from agents.router.haproxy.state import HaProxyError

_ENTRY = re.compile(r"key=(\S+) .*gpc0=(\d+)")
_GOOD = ("hrsp_1xx", "hrsp_2xx", "hrsp_3xx", "hrsp_4xx")
_BAD = ("hrsp_5xx", "hrsp_other")
"""Those without any answer count as `other`, as when the client left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One backend since HAProxy's start."""

    arrivals: int = 0
    served: int = 0
    rejected: int = 0
    in_slo: int = 0
    queued: int = 0
    """Now: requests that wait or run."""


NOTHING = Counted()


def read_counts(proxy: HaProxy) -> dict[str, Counted]:
    """The counts of every backend. Raises HaProxyError."""
    stat = proxy.ask("show stat -1 2 -1")  # 2: backends only
    return parse_counts(stat, proxy.ask(f"show table {IN_SLO_TABLE}"))


def parse_counts(stat: str, table: str) -> dict[str, Counted]:
    """What `show stat` and `show table` say. Raises HaProxyError."""
    in_slo = {key: int(count) for key, count in _ENTRY.findall(table)}
    try:
        rows = csv.DictReader(stat.removeprefix("# ").splitlines())
        return {
            row["pxname"]: _counted(row, in_slo.get(row["pxname"], 0)) for row in rows
        }
    except (KeyError, TypeError, ValueError) as error:
        raise HaProxyError(
            f"cannot read HAProxy's counts: {error!r} in {stat[:200]!r}"
        ) from error


def _counted(row: Mapping[str, str], in_slo: int) -> Counted:
    def total(*names: str) -> int:
        return sum(int(row[name] or 0) for name in names)

    return Counted(
        arrivals=total("stot"),
        served=total(*_GOOD),
        rejected=total(*_BAD),
        in_slo=in_slo,
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
            # A hit is counted with the answer's headers, its answer with its last byte: the next reading tells it.
            in_slo = min(counted.in_slo, before.in_slo + reading.in_slo)
            self._before[backend] = replace(counted, in_slo=in_slo)
            readings.append(reading)
        return tuple(readings)


def _reading(service: str, before: Counted, now: Counted) -> ServiceReading:
    served = max(0, now.served - before.served)
    return ServiceReading(
        service=service,
        arrivals=now.arrivals - before.arrivals,
        served=served,
        in_slo=min(served, max(0, now.in_slo - before.in_slo)),
        rejected=max(0, now.rejected - before.rejected),
        queued=now.queued,
    )
