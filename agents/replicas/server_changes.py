"""What a server counted between two of its pages: differences series by series, which are summed only then.

A sum over engines falls little, or not at all, where one of them began again, and would then count all that this one
ever did. So each series is compared with itself. What began again counts from zero:

* a new process, which says when it started (`process_start_time_seconds`);
* one engine of several, whose counters fell while those of the others did not.

Everything else that falls is another server behind the same address, and what each of them ever counted would look like
new requests, back and forth, for ever. One that started later and ran already when the earlier page was read may have
taken the other one's place, as in a rolling update; only the next page shows whether both answer.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial

from prometheus_client.samples import Sample

from agents.replicas.server_metrics import (
    Page,
    ServerCounts,
    of_service,
    read_server,
)
from agents.replicas.server_names import RATIOS, SERVERS, SERVICE_LABEL, ServerKind

STARTED = "process_start_time_seconds"
CLOCKS_S = 5.0
"""Starts are counted from the boot of the machine and answers are dated in whole seconds: they agree by so much."""
MAX_SERIES = 100_000
"""A server has at most this number, with those that are no longer there; an engine of vLLM has some hundred."""
_PARTS = frozenset(
    {"le", "finished_reason", "reason", "model_name", "model", "version"}
)
"""Labels that divide what one process counts; by the others, such as vLLM's `engine`, processes are told apart."""
_JUDGED = ("served", "latency")
"""Quantities that every engine tells, and that grow with each request."""
_GAUGES = ("waiting", "running")


class AnotherServer(Exception):
    """The pages are of two servers that both run."""


class MayBeAnother(Exception):
    """Only the next page can show it: the counters of an unknown process fell, or a process that ran before answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPage:
    """What a server said of itself at one moment."""

    at_s: float
    """Unix seconds."""
    page: Page
    server_s: float | None = None
    """The same moment by the server's own clock; None: it does not tell."""

    @property
    def started_s(self) -> float | None:
        """When the newest of its processes started, by its own clock; None: it does not say."""
        starts = [each.value for each in self.page.get(STARTED, ())]
        return max(filter(math.isfinite, starts), default=None)


def counts_since(
    before: ServerPage | None, after: ServerPage, kind: ServerKind, served_as: str
) -> ServerCounts:
    """How much each quantity grew; ratios are as they are now. None: since the server's start.

    Raises AnotherServer, MayBeAnother, and what `read_server` raises.
    """
    if before is None or _is_restarted(before, after):
        return read_server(after.page, kind, served_as)
    then, now = (_series(each.page, kind, served_as) for each in (before, after))
    restarted = _began_again(
        then,
        now,
        frozenset(_names(kind, _JUDGED)),
        is_start_known=after.started_s is not None,
    )
    grown = partial(
        _grown, then=then, restarted=restarted, gauges=frozenset(_names(kind, _GAUGES))
    )
    names = {sample.name for sample in now.values()}
    page = {
        name: tuple(map(grown, samples)) if name in names else samples
        for name, samples in after.page.items()
    }
    return read_server(page, kind, served_as)


def with_lost(before: ServerPage, after: ServerPage) -> ServerPage:
    """The later page with the series of the earlier one that it lacks.

    An engine that is away from a page goes on counting; where it is back it counts from what was seen of it last.
    Nothing of a new process is kept.
    """
    if before.started_s != after.started_s:
        return after
    page = dict(after.page)
    for name, samples in before.page.items():
        there = {_key(sample) for sample in page.get(name, ())}
        lost = [sample for sample in samples if _key(sample) not in there]
        page[name] = (*page.get(name, ()), *lost)
    # Engines whose names change with each of their starts would add up for ever.
    is_bounded = sum(map(len, page.values())) <= MAX_SERIES
    return replace(after, page=page) if is_bounded else after


def _is_restarted(before: ServerPage, after: ServerPage) -> bool:
    """Whether it is a new process. Raises AnotherServer for an older one, MayBeAnother for one that ran before."""
    then_s, now_s = before.started_s, after.started_s
    if then_s is None or now_s is None or then_s == now_s:
        return False
    if now_s < then_s:
        raise AnotherServer(
            f"one has run since {then_s:.0f} and another one since {now_s:.0f} (Unix seconds)"
        )
    read_s = before.at_s if before.server_s is None else before.server_s
    if now_s < read_s - CLOCKS_S:
        raise MayBeAnother("another process answers, which ran before")
    return True


_Key = tuple[str, tuple[tuple[str, str], ...]]


def _series(page: Page, kind: ServerKind, served_as: str) -> Mapping[_Key, Sample]:
    """All series of a service that are compared, by name and labels; those of ratios are not."""
    quantities = [each for each in SERVERS[kind] if each not in RATIOS]
    return {
        _key(sample): sample
        for name in _names(kind, quantities)
        for sample in of_service(page.get(name, ()), SERVICE_LABEL[kind], served_as)
        if math.isfinite(sample.value)
    }


def _names(kind: ServerKind, quantities: Iterable[str]) -> Iterator[str]:
    for quantity in quantities:
        for each in SERVERS[kind].get(quantity, ()):
            yield from (each.name, f"{each.name}_total", f"{each.name}_bucket")


def _key(sample: Sample) -> _Key:
    return sample.name, tuple(sorted(sample.labels.items()))


_Engine = tuple[tuple[str, str], ...]


def _engine(sample: Sample) -> _Engine:
    return tuple(
        sorted(each for each in sample.labels.items() if each[0] not in _PARTS)
    )


def _began_again(
    then: Mapping[_Key, Sample],
    now: Mapping[_Key, Sample],
    judged: Set[str],
    *,
    is_start_known: bool,
) -> frozenset[_Engine]:
    """The engines whose counters fell. Raises AnotherServer or MayBeAnother where that is all of them."""
    both = [key for key in then.keys() & now.keys() if key[0] in judged]
    fell = {_engine(now[key]) for key in both if now[key].value < then[key].value}
    if fell and fell == {_engine(now[key]) for key in both}:
        if is_start_known:
            raise AnotherServer("its counters fell, though its process is the same")
        raise MayBeAnother("its counters fell, and it does not say when it started")
    return frozenset(fell)


def _grown(
    sample: Sample,
    *,
    then: Mapping[_Key, Sample],
    restarted: Set[_Engine],
    gauges: Set[str],
) -> Sample:
    before = then.get(_key(sample))
    # One that was not there has counted from zero.
    if before is None or _engine(sample) in restarted:
        return sample
    is_new = sample.value < before.value and sample.name not in gauges
    return sample if is_new else sample._replace(value=sample.value - before.value)
