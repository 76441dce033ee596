"""What other programs' Prometheus metrics mean in our nouns, read by the table of names in `server_names`.

    page = read_page(text)
    read_server(page, "vllm", "llama-3-8b")     -> ServerCounts, since the server's start
    read_gpus(page)                             -> GpuCounts of every GPU that a DCGM exporter tells of

Names are tried in the order of the table, and the first that is there counts: some versions emit an old name and its
successor together. A counter is found with and without `_total`. Labels are compared without regard to case: DCGM's
`Hostname` became `hostname`. What a program does not tell is None.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from agents.replicas.server_names import (
    GPUS,
    HISTOGRAMS,
    RATIOS,
    SERVERS,
    SERVICE_LABEL,
    XID_COUNTS,
    XIDS,
    Name,
    ServerKind,
)

Page: TypeAlias = Mapping[str, tuple[Sample, ...]]
"""Samples by their name."""
MAX_LINE = 65_536
"""Characters; lines of real pages have some hundred. The parser copies the rest of a line for each of its labels: 1 MiB
of labels in one line takes it 6.5 s, 0.25 MiB 0.3 s, and 4 MiB in lines of this length 2 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts by bucket; the last bucket has no end."""

    ends_ms: tuple[float, ...]
    """Ascending; infinity is the last."""
    counts: tuple[int, ...]
    """How many each bucket holds alone."""

    def within(self, limit_ms: float) -> float:
        """How many took at most so long, as if they were spread evenly over their bucket."""
        found, begin_ms = 0.0, 0.0
        for end_ms, count in zip(self.ends_ms, self.counts, strict=True):
            if end_ms <= limit_ms:
                found += count
            elif begin_ms < limit_ms and math.isfinite(end_ms):
                found += count * (limit_ms - begin_ms) / (end_ms - begin_ms)
            begin_ms = end_ms
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounts:
    """What a server of networks tells of one of them, since it started."""

    served: float | None = None
    failed: float | None = None
    rows: float | None = None
    """Rows of all batches that ran."""
    batches: float | None = None
    busy_s: float | None = None
    """In which batches ran."""
    waiting: float | None = None
    """Now."""
    running: float | None = None
    """Now."""
    memory_used_ratio: float | None = None
    """Used share of the memory for keys and values, now; of several engines the mean."""
    prompt_tokens: float | None = None
    found_tokens: float | None = None
    """The part of them that its cache of prefixes had."""
    generated_tokens: float | None = None
    preemptions: float | None = None
    total_s: float | None = None
    """Sum of the latencies."""
    latency: Histogram | None = None
    first_token: Histogram | None = None
    between_tokens: Histogram | None = None
    mean_gaps: Histogram | None = None
    """Each request counts once, with its mean time from one token to the next."""
    in_queue: Histogram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCounts:
    """What a DCGM exporter tells of one GPU, or of one slice of it."""

    index: str
    uuid: str = ""
    host: str = ""
    slice: str = ""
    """Number of the MIG slice; empty for a whole GPU."""
    power_w: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""
    memory_used_mib: float | None = None
    memory_free_mib: float | None = None
    busy_ratio: float | None = None
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    engine_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    xids: tuple[int, ...] = ()
    """Numbers of the errors that the driver met, ascending; 0 means none."""


class NotAPage(ValueError):
    """The text holds no Prometheus metrics."""


def read_page(text: str) -> Page:
    """Everything in a text, by name. Raises NotAPage."""
    found: dict[str, list[Sample]] = defaultdict(list)
    if max(map(len, text.split("\n"))) > MAX_LINE:
        raise NotAPage(
            f"holds no Prometheus metrics: a line has more than {MAX_LINE} characters"
        )
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name].append(sample)
    except ValueError as error:
        raise NotAPage(f"holds no Prometheus metrics: {str(error)[:200]}") from error
    return {name: tuple(samples) for name, samples in found.items()}


def read_server(page: Page, kind: ServerKind, served_as: str) -> ServerCounts:
    """What a server tells of the network that it calls so; sums over its other labels, of ratios the mean.

    Raises KeyError, ValueError or OverflowError for a bucket without an end or a count.
    """
    label = SERVICE_LABEL[kind]
    found: dict[str, float | Histogram | None] = {}
    for quantity, names in SERVERS[kind].items():
        read = _READERS.get(quantity, _total)
        values = (read(page, name, label, served_as) for name in names)
        # An old name and its successor may both be there: adding them would count twice.
        found[quantity] = next((value for value in values if value is not None), None)
    return ServerCounts(**found)  # type: ignore[arg-type]


def read_gpus(page: Page) -> tuple[GpuCounts, ...]:
    """Every GPU and slice, by host, number and slice."""
    found: dict[_GpuKey, dict[str, float]] = defaultdict(dict)
    wanted = [(quantity, name) for quantity, names in GPUS.items() for name in names]
    for quantity, name in wanted:
        for sample in _filled(page, name.name):
            # The first name that has a value counts, as in `read_server`.
            found[_gpu_of(sample)].setdefault(quantity, sample.value * name.factor)
    xids = _xids(page)
    return tuple(
        GpuCounts(
            host=gpu.host,
            index=gpu.number,
            slice=gpu.mig,
            uuid=gpu.uuid,
            xids=tuple(sorted(xids.get(gpu, ()))),
            **found.get(gpu, {}),
        )
        for gpu in sorted({*found, *xids})
    )


class _GpuKey(NamedTuple):
    host: str
    number: str
    mig: str
    uuid: str


def _gpu_of(sample: Sample) -> _GpuKey:
    labels = {label.lower(): value for label, value in sample.labels.items()}
    return _GpuKey(
        *(labels.get(each, "") for each in ("hostname", "gpu", "gpu_i_id", "uuid"))
    )


def _xids(page: Page) -> dict[_GpuKey, set[int]]:
    """All that are told of a GPU: the newest may hide the one that matters."""
    found: dict[_GpuKey, set[int]] = defaultdict(set)
    for sample in _filled(page, XIDS):
        found[_gpu_of(sample)].add(round(sample.value))
    for name in XID_COUNTS:
        for sample in _filled(page, name):
            number = sample.labels.get("xid", "")
            if sample.value > 0 and number.isdecimal():
                found[_gpu_of(sample)].add(int(number))
    for numbers in found.values():
        if len(numbers) > 1:
            numbers.discard(0)
    return found


def _filled(page: Page, name: str) -> Iterator[Sample]:
    """The samples that say something: neither what is not finite, which JSON cannot hold, nor DCGM's blanks."""
    for sample in _samples(page, name):
        if math.isfinite(sample.value) and not _is_blank(sample.value):
            yield sample


def _is_blank(value: float) -> bool:
    """Whether DCGM means that it does not know: blank, not found, not supported or not permitted.

    dcgm_structs.h has four numbers in a row for each type: from 2^31 - 16 (32 bits), 2^63 - 16 (64 bits) and 2^47
    (floating point). No quantity here is ever as large as the last two, and as a float 2^63 - 16 is rounded.
    """
    return value >= 2.0**47 or 2.0**31 - 16 <= value <= 2.0**31 - 13


Quantity: TypeAlias = float | str | tuple[int, ...] | Histogram


def known(counts: ServerCounts | GpuCounts) -> dict[str, Quantity]:
    """What is known, by name."""
    pairs = ((field.name, getattr(counts, field.name)) for field in fields(counts))
    return {name: value for name, value in pairs if value not in (None, "", ())}


def _samples(page: Page, name: str) -> tuple[Sample, ...]:
    return page.get(name) or page.get(f"{name}_total") or ()


def of_service(samples: Iterable[Sample], label: str, value: str) -> list[Sample]:
    """Those of one service; a server that serves one may leave its name out."""
    return [sample for sample in samples if sample.labels.get(label, value) == value]


def _total(page: Page, name: Name, label: str, value: str) -> float | None:
    found = of_service(_samples(page, name.name), label, value)
    return sum(each.value for each in found) * name.factor if found else None


def _mean(page: Page, name: Name, label: str, value: str) -> float | None:
    total = _total(page, name, label, value)
    if total is None:
        return None
    return total / len(of_service(_samples(page, name.name), label, value))


def _histogram(page: Page, name: Name, label: str, value: str) -> Histogram | None:
    below: dict[float, float] = defaultdict(float)
    for sample in of_service(page.get(f"{name.name}_bucket", ()), label, value):
        below[float(sample.labels["le"]) * name.factor] += sample.value
    if not below:
        return None
    ends = tuple(sorted(below))
    cumulative = (0.0, *(below[end] for end in ends))
    # Prometheus' buckets are cumulative; ours hold what is in each alone.
    counts = tuple(
        max(0, round(upto - before)) for before, upto in pairwise(cumulative)
    )
    return Histogram(ends_ms=ends, counts=counts)


_READERS = {
    **dict.fromkeys(HISTOGRAMS, _histogram),
    **dict.fromkeys(RATIOS, _mean),
}
