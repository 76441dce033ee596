"""The Prometheus text, read back by Prometheus' own parser."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from agents.base.device import ServiceRoute
from agents.base.latency_buckets import BUCKET_COUNT
from agents.router.metrics import MAX_SERVICES, OTHERS, exposition, shown
from agents.router.service_queue import ServiceQueue


class Time:
    now_s = 0.0


def a_queue(service: str, time: Time | None = None) -> ServiceQueue:
    time = time or Time()
    route = ServiceRoute(service=service, slo_ms=100.0, shares=(("a", 1.0), ("b", 1.0)))
    return ServiceQueue(route, queue_limit=4, replica_limit=4, now_s=lambda: time.now_s)


def samples(
    *service_queues: ServiceQueue, unknown: int = 0
) -> dict[tuple[str, ...], float]:
    """(name without its prefix, label values …) → value."""
    return {
        (
            sample.name.removeprefix("plimsoll_router_"),
            *sample.labels.values(),
        ): sample.value
        for family in text_string_to_metric_families(
            exposition(shown(service_queues), unknown=unknown)
        )
        for sample in family.samples
    }


def test_counts_gauges_and_histograms_are_the_lanes() -> None:
    time = Time()
    service_queue = a_queue("chat", time)
    for now_s, latency_ms in ((1.0, 0.2), (1.5, 30.0), (2.0, 150.0)):
        time.now_s = now_s
        service_queue.arrive()
        service_queue.finish(latency_ms)
    time.now_s = 2.001
    service_queue.arrive()
    service_queue.reject("expired")
    asyncio.run(service_queue.acquire())
    service_queue.fail("b", is_unreachable=True)
    found = samples(service_queue, unknown=7)
    totals = ("arrivals_total", "served_total", "in_slo_total")
    assert [found[each, "chat"] for each in totals] == [4, 3, 2]
    refused = [found["rejected_total", "chat", each] for each in ("expired", "full")]
    assert refused == [1, 0]
    assert (found["waiting", "chat"], found["running", "chat"]) == (0, 1)
    assert (found["replicas", "chat"], found["replicas_out", "chat"]) == (2, 1)
    assert found[("unknown_service_total",)] == 7
    # 0.2 ms is in the first bucket, 30 ms below 0.25 · 2^7 = 32 ms, 150 ms below 0.25 · 2^10 = 256 ms.
    latency = {"0.25": 1, "16": 1, "32": 2, "128": 2, "256": 3, "+Inf": 3}
    assert below(found, "latency_ms_bucket").items() >= latency.items()
    assert found["latency_ms_count", "chat"] == 3
    assert found["latency_ms_sum", "chat"] == 180.2
    # Four arrivals have three gaps: 500, 500 and 1 ms.
    gaps = {"0.5": 0, "1": 1, "256": 1, "512": 3, "+Inf": 3}
    assert below(found, "arrival_gap_ms_bucket").items() >= gaps.items()
    assert found["arrival_gap_ms_sum", "chat"] == 1001.0


def below(found: dict[tuple[str, ...], float], name: str) -> dict[str, float]:
    """Counts of a histogram by the ends of its buckets."""
    return {key[2]: value for key, value in found.items() if key[0] == name}


def test_every_bucket_is_below_some_end() -> None:
    service_queue = a_queue("chat")
    for exponent in range(BUCKET_COUNT):
        service_queue.finish(0.25 * 2.0 ** (exponent / 4))
    found = samples(service_queue)
    counted = [value for key, value in found.items() if key[0] == "latency_ms_bucket"]
    assert counted == sorted(counted)
    assert counted[-1] == BUCKET_COUNT
    # Ends at 0.25 · 2^0, 2^1 … 2^19: the first holds one bucket, each other four; buckets 77, 78, 79 have none.
    assert counted[:-1] == [1 + 4 * turn for turn in range(20)]


def test_services_beyond_the_bound_are_added_up() -> None:
    service_queues = [a_queue(f"s{number:04}") for number in range(MAX_SERVICES + 10)]
    for service_queue in service_queues:
        service_queue.arrive()
    found = samples(*service_queues)
    assert found["arrivals_total", OTHERS] == 10
    assert sum(key[0] == "arrivals_total" for key in found) == MAX_SERVICES + 1


def test_names_cannot_break_out_of_their_label() -> None:
    found = samples(a_queue('a"b\\c'))
    assert found["arrivals_total", 'a"b\\c'] == 0
