"""The agent's own metrics: what its newest window says, and how it gets on with the control plane."""

from contextlib import nullcontext

import aiohttp
import pytest
from msgspec import structs

from agents.base.addresses import advertised
from agents.base.exposition import metrics_port
from agents.base.protocol import (
    Ack,
    GpuReading,
    NodeCommand,
    Observation,
    Overuse,
    ReplicaReading,
    SyncReply,
    UseReading,
)
from agents.daemon.metrics import AgentMetrics, MeteredTransport
from agents.sync.outbox import Outbox
from agents.sync.transport import (
    ControlPlaneSilent,
    DirectTransport,
    NotAuthorised,
    TransportError,
    Unacceptable,
)
from tests.agents.factories import a_command, a_gpu, a_replica, an_observation
from tests.ports import own_ports
from tests.waiting import in_loop, run

PORT = own_ports()

GPU = GpuReading(
    index=0,
    gpu_type="T4",
    memory_mib=16384,
    memory_used_mib=1024,
    power_w=60.0,
    energy_j=120.0,
    clock_mhz=1590.0,
    busy_percent=75.0,
)
CHAT = a_replica("r-1", sm_percent=40.0, batch=8, memory_mib=900.0)
SEEN = an_observation(
    generation=3,
    gpus=(GPU, structs.replace(GPU, index=1)),
    replicas=(
        ReplicaReading(
            id="r-1",
            service="chat",
            gpu_index=0,
            state="ready",
            sm_percent=40.0,
            batch=8,
            memory_mib=900.0,
        ),
    ),
    acks=(Ack(generation=2, status="refused"), Ack(generation=3, status="applied")),
    problems=("no MPS here",),
    window_s=2.0,
    uses=(
        UseReading(
            kind="replica",
            name="r-1",
            gpu_index=0,
            service="chat",
            sm_percent=50.0,
            energy_j=80.0,
            over=(Overuse(quantity="sm_use", granted=40.0, used=50.0),),
        ),
    ),
)
COMMAND = a_command(
    structs.replace(a_gpu(CHAT, clock_mhz=0.0, cap_w=60.0), gpu_type="T4"), generation=3
)


def watched() -> tuple[AgentMetrics, Outbox]:
    metrics = AgentMetrics(node="n1", version="1.0", wall_s=lambda: 1000.0)
    outbox = Outbox(capacity=2)
    outbox.on_add = metrics.note
    return metrics, outbox


def values(
    metrics: AgentMetrics, outbox: Outbox, command: NodeCommand | None = None
) -> dict[str, float]:
    """What a scrape shows: series, as they are written, with their values."""
    lines = metrics.page(outbox, command).text().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {series: float(value) for series, _, value in pairs}


def test_the_newest_window_is_shown_in_base_units() -> None:
    metrics, outbox = watched()
    outbox.add(SEEN)
    shown = values(metrics, outbox, COMMAND)
    on_t4 = '{gpu="0",gpu_type="T4"}'
    use = '{gpu="0",kind="replica",name="r-1",service="chat"}'
    over = '{gpu="0",kind="replica",name="r-1",quantity="sm_use",service="chat"}'
    expected = {
        f"gpu_power_watts{on_t4}": 60.0,
        f"gpu_memory_used_bytes{on_t4}": 2**30,
        f"gpu_clock_hertz{on_t4}": 1.59e9,
        f"gpu_busy_ratio{on_t4}": 0.75,
        f"gpu_power_limit_watts{on_t4}": 60.0,
        f"gpu_sm_granted_ratio{on_t4}": 0.4,
        # 0: the clock is not locked.
        f"gpu_clock_limit_hertz{on_t4}": None,
        'replicas{service="chat",state="ready"}': 1,
        'acknowledgement{status="applied"}': 1,
        "problems": 1,
        f"use_power_watts{use}": 40.0,
        # The driver did not tell.
        f"use_memory_bytes{use}": None,
        f"use_over{over}": 1,
    }
    assert {name: shown.get(f"plimsoll_agent_{name}") for name in expected} == expected


def test_what_is_gone_has_no_series_and_energy_adds_up() -> None:
    metrics, outbox = watched()
    outbox.add(SEEN)
    outbox.add(structs.replace(SEEN, sequence=2, gpus=(GPU,), replicas=(), uses=()))
    shown = values(metrics, outbox)
    energy = 'plimsoll_agent_gpu_energy_joules_total{gpu="0",gpu_type="T4"}'
    assert shown[energy] == 240.0
    assert not any('gpu="1"' in each or 'service="chat"' in each for each in shown)


def test_windows_that_wait_and_that_are_lost_are_counted() -> None:
    metrics, outbox = watched()
    for sequence in (1, 2, 3):
        outbox.add(structs.replace(SEEN, sequence=sequence))
    shown = values(metrics, outbox)
    assert shown["plimsoll_agent_observations_total"] == 3
    assert shown["plimsoll_agent_observations_waiting"] == 2
    assert shown["plimsoll_agent_observations_lost_total"] == 1


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, "answered"),
        (ControlPlaneSilent("no"), "unreachable"),
        (NotAuthorised("no"), "not_authorised"),
        (Unacceptable("no"), "refused"),
    ],
)
def test_exchanges_are_counted_by_what_came_of_them(
    error: TransportError | None, result: str
) -> None:
    async def handle(seen: Observation, wait_s: float) -> SyncReply:
        if error is not None:
            raise error
        return SyncReply(boot=seen.boot, acknowledged=seen.sequence, server_time_s=1.0)

    metrics, outbox = watched()
    transport = MeteredTransport(DirectTransport(handle), metrics)
    with pytest.raises(type(error)) if error else nullcontext():
        assert run(transport.exchange(SEEN, wait_s=0.0)).acknowledged == 1
    shown = values(metrics, outbox)
    counted = {name for name, value in shown.items() if "syncs_total" in name and value}
    assert counted == {f'plimsoll_agent_syncs_total{{result="{result}"}}'}
    assert ("plimsoll_agent_last_answer_timestamp_seconds" in shown) == (error is None)


@pytest.mark.parametrize(
    ("host", "port", "url", "address"),
    [
        ("127.0.0.1", 0, "http://127.0.0.1:8080", ""),
        ("127.0.0.1", 9410, "http://127.0.0.1:8080", "127.0.0.1:9410"),
        ("127.0.0.1", 9410, "http://localhost:8080", "127.0.0.1:9410"),
        ("127.0.0.1", 9410, "https://plimsoll.example", ""),
        ("10.0.0.7", 9410, "https://plimsoll.example", "10.0.0.7:9410"),
        ("fd00::7", 9410, "https://plimsoll.example", "[fd00::7]:9410"),
    ],
)
def test_an_address_is_told_only_where_it_leads_to_this_node(
    host: str, port: int, url: str, address: str
) -> None:
    assert advertised(host, port, url) == address


@in_loop
async def test_the_port_answers_scrapes_and_nothing_else() -> None:
    async with (
        metrics_port("127.0.0.1", PORT, lambda: b"plimsoll_agent_problems 0\n"),
        aiohttp.ClientSession(f"http://127.0.0.1:{PORT}") as session,
        session.get("/metrics") as answer,
        session.get("/") as other,
    ):
        assert await answer.text() == "plimsoll_agent_problems 0\n"
        assert (answer.status, other.status) == (200, 404)
