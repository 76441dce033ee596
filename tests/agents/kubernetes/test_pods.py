"""What only Pods can meet: others who delete them, an API server that is away, images, agents that died in between."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
import pytest
from msgspec import structs

from agents.base.protocol import EngineCommand
from agents.kubernetes.api import ApiAddress, KubernetesApi
from agents.kubernetes.pods import Pods
from agents.processes.templates import Template
from tests.agents.factories import a_replica
from tests.agents.fakes.replicas import (
    Node,
    a_launch,
    gone,
    in_loop,
    is_running,
    started,
    the,
    until,
)
from tests.agents.kubernetes.cluster import (
    TESTBED,
    Cluster,
    make_cluster,
    pod_names,
    until_no_pods,
)
from tests.agents.kubernetes.fake_api import FakeApi

pytestmark = pytest.mark.integration
fake_only = pytest.mark.skipif(TESTBED != "", reason="a real server does not do that")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with make_cluster(tmp_path / "cluster") as made:
        yield made


@pytest.fixture
def fake(cluster: Cluster) -> FakeApi:
    assert cluster.fake is not None
    return cluster.fake


@pytest.fixture
def node(tmp_path: Path, cluster: Cluster) -> Node:
    return Node(directory=tmp_path / "workers", cluster=cluster)


async def images(cluster: Cluster) -> set[str]:
    """What the Pods of the node run."""
    api = KubernetesApi(cluster.address)
    try:
        found = [
            await Pods(api, cluster.settings).read(each)
            for each in await pod_names(cluster)
        ]
    finally:
        await api.close()
    return {each.image for each in found if each is not None}


async def delete_as_others_do(cluster: Cluster) -> None:
    """The only Pod, with its own grace, as `kubectl drain` does."""
    api = KubernetesApi(cluster.address)
    try:
        (name,) = await pod_names(cluster)
        path = f"/api/v1/namespaces/{cluster.settings.namespace}/pods/{name}"
        await api.ask("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions"})
    finally:
        await api.close()


@in_loop
async def test_a_stopped_replica_leaves_no_pod(node: Node, cluster: Cluster) -> None:
    async with node.workers() as workers:
        await started(workers)
        assert len(await pod_names(cluster)) == 1
        await workers.stop("r1")
        await gone(workers)
        await until_no_pods(cluster)
    assert cluster.kubelet.killed == []


@in_loop
async def test_what_others_delete_takes_no_requests_and_ends_in_peace(
    node: Node, cluster: Cluster
) -> None:
    async with node.workers() as workers:
        view = await started(workers)
        changes: list[str] = []
        workers.on_change = lambda: changes.extend(
            each.state for each in workers.replicas()
        )
        await delete_as_others_do(cluster)
        await until(lambda: the(workers).state != "ready")
        await until(lambda: the(workers).state == "failed")
        # Enforcement is woken by both, at the first to switch its routes.
        assert changes == ["draining", "failed"]
        assert "somebody else deletes its Pod" in the(workers).message
        assert not is_running(view.pid)
        await until_no_pods(cluster)
        assert cluster.kubelet.killed == []


@in_loop
async def test_an_image_that_cannot_be_pulled_is_named(
    node: Node, cluster: Cluster
) -> None:
    cluster.kubelet.pulls = False
    async with node.workers() as workers:
        await workers.start(a_launch())
        await until(lambda: "its image cannot be pulled" in the(workers).message)
        assert the(workers).state == "starting"
    node.start_limit_s = 0.15

    async def fails_with_its_name() -> bool:
        # What its Pod waits for is known within some limit, on a busy machine a longer one.
        node.start_limit_s *= 2.0
        async with node.workers() as workers:
            view = await started(workers, state="failed")
            await until_no_pods(cluster)
            return "no such image" in view.message

    await until(fails_with_its_name)


@in_loop
async def test_a_pod_without_a_record_is_ended_by_the_next_agent(
    node: Node, cluster: Cluster
) -> None:
    async with node.workers(keep=True) as workers:
        view = await started(workers)
    for path in (node.directory / "records").iterdir():
        path.unlink()
    async with node.workers() as workers:
        assert workers.replicas() == ()
        assert not is_running(view.pid)
        await until_no_pods(cluster)


@in_loop
async def test_a_pod_of_another_directory_is_left_alone(
    node: Node, cluster: Cluster, tmp_path: Path
) -> None:
    other = Node(directory=tmp_path / "tasks", cluster=cluster)
    async with other.workers() as its_workers:
        view = await started(its_workers)
        async with node.workers() as workers:
            assert workers.replicas() == ()
        assert is_running(view.pid) and the(its_workers).state == "ready"


@in_loop
async def test_creating_the_same_pod_twice_is_creating_it_once(
    node: Node, cluster: Cluster
) -> None:
    async with node.workers() as workers:
        await started(workers)
        api = KubernetesApi(cluster.address)
        (name,) = await pod_names(cluster)
        path = f"/api/v1/namespaces/{cluster.settings.namespace}/pods/{name}"
        manifest = msgspec.json.decode(await api.ask("GET", path))
        uid = manifest["metadata"].pop("uid")
        del manifest["metadata"]["resourceVersion"]
        found = await Pods(api, cluster.settings).create(manifest)
        await api.close()
        assert found.metadata.uid == uid


@fake_only
@in_loop
async def test_while_the_api_is_away_a_start_waits_and_what_runs_goes_on(
    node: Node, cluster: Cluster, fake: FakeApi
) -> None:
    async with node.workers() as workers:
        await started(workers)
        set_away(fake, is_away=True)
        await workers.start(a_launch("r2"))
        await until(lambda: "the server is away" in the(workers, "r2").message)
        assert (the(workers).state, the(workers, "r2").state) == ("ready", "starting")
        set_away(fake, is_away=False)
        await until(lambda: the(workers, "r2").state == "ready")


@fake_only
@in_loop
async def test_what_runs_is_adopted_and_ended_without_the_api(
    node: Node, cluster: Cluster, fake: FakeApi
) -> None:
    async with node.workers(keep=True) as workers:
        view = await started(workers)
    set_away(fake, is_away=True)
    async with AsyncExitStack() as stack:
        launcher = await stack.enter_async_context(cluster.launcher())
        assert "Pods cannot be started here" in launcher.problems[0]
        workers = node.make(launcher)
        await workers.open()
        stack.push_async_callback(workers.close, keep=False)
        await until(lambda: the(workers).state == "ready")
        assert (the(workers).pid, the(workers).url) == (view.pid, view.url)
        await workers.stop("r1")
        await gone(workers)
        assert not is_running(view.pid)
        set_away(fake, is_away=False)
        # What is left of it in the API goes when that is there again.
        await until_no_pods(cluster)
        assert launcher.problems == ()


@fake_only
@in_loop
async def test_after_a_gap_in_the_watch_nothing_is_missed(
    node: Node, fake: FakeApi
) -> None:
    async with node.workers() as workers:
        await started(workers)
        asked = len(fake.requests)
        set_away(fake, is_away=True)
        await until(lambda: len(fake.requests) > asked)
        # Removed by force meanwhile, and the server has forgotten that it was.
        fake.objects.clear()
        fake.forgets_before = 10**6
        lists = fake.requests.count("GET /api/v1/namespaces/plimsoll-replicas/pods")
        set_away(fake, is_away=False)
        await until(
            lambda: (
                fake.requests.count("GET /api/v1/namespaces/plimsoll-replicas/pods")
                > lists + 1
            )
        )
        await until(lambda: the(workers).state == "failed")
        assert "its Pod was removed" in the(workers).message


@fake_only
@in_loop
async def test_a_renewed_token_is_read_again(
    cluster: Cluster, fake: FakeApi, tmp_path: Path
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("old")
    api = KubernetesApi(ApiAddress(url=fake.url, token_file=token_file))
    pods = Pods(api, cluster.settings)
    with pytest.raises(Exception, match="Unauthorized"):
        await pods.read("r1")
    token_file.write_text(fake.token)
    assert await pods.read("r1") is None
    await api.close()


@pytest.mark.thorough
@fake_only
@in_loop
async def test_an_idle_agent_asks_nothing(node: Node, fake: FakeApi) -> None:
    async with node.workers() as workers:
        await started(workers)

        async def is_silent() -> bool:
            asked = len(fake.requests)
            await asyncio.sleep(3.0)
            return len(fake.requests) == asked

        await until(is_silent)


def set_away(fake: FakeApi, *, is_away: bool) -> None:
    """In the loop of its own thread."""
    assert fake.loop is not None
    fake.loop.call_soon_threadsafe(lambda: fake.set_away(is_away=is_away))


@in_loop
async def test_without_an_image_a_pod_runs_the_agents_own(
    node: Node, cluster: Cluster
) -> None:
    async with node.workers() as workers:
        await started(workers)
        (own,) = await pod_names(cluster)
        cluster.settings = replace(cluster.settings, image="", own_pod=own)
        async with cluster.launcher() as launcher:
            other = replace(node, directory=node.directory.parent / "other")
            its_workers = other.make(launcher)
            await its_workers.open()
            await its_workers.start(a_launch("r2"))
            await until(lambda: the(its_workers, "r2").state == "ready")
            assert await images(cluster) == {"worker"}
            await its_workers.close(keep=False)


def slow(seconds: int) -> Template:
    """So long each request takes."""
    return Template(
        name="slow",
        command=(
            *(sys.executable, "-m", "agents.serving", "--engine", "timed"),
            # A full batch, which the worker warms up by, takes a millisecond.
            *("--times-ms", f"1:{1000 * seconds},4:1"),
            *("--drain-s", f"{seconds + 18}"),
            *("--service", "{service}", "--host", "{host}"),
            *("--port", "{port}", "--batch", "{batch}"),
        ),
        environment={"PYTHONPATH": str(Path(__file__).parents[3])},
        drain_limit_s=seconds + 23.0,
    )


@pytest.mark.parametrize("seconds", [1, pytest.param(60, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("who", ["kubectl drain", "the agent"])
@in_loop
async def test_what_is_being_answered_is_answered_whoever_ends_the_pod(
    node: Node, cluster: Cluster, who: str, seconds: int
) -> None:
    node.own_template = slow(seconds)
    async with node.workers() as workers, aiohttp.ClientSession() as session:
        url = f"{(await started(workers)).url}/v2/models/chat/infer"
        body = {
            "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]
        }
        asked = asyncio.create_task(session.post(url, json=body))

        async def is_in_the_worker() -> bool:
            async with session.get(f"{the(workers).url}/status") as status:
                found = await status.json()
                return found["waiting"] + found["running"] > 0

        await until(is_in_the_worker)
        if who == "the agent":
            await workers.stop("r1")
        else:
            await delete_as_others_do(cluster)
        async with await asked as response:
            assert response.status == 200
        await until(lambda: all(each.state == "failed" for each in workers.replicas()))
        await until_no_pods(cluster)
    assert cluster.kubelet.killed == []


CUTS_STREAMS = """
import sys
from aiohttp import web
run = web.run_app
web.run_app = lambda app, **given: run(app, **{**given, "shutdown_timeout": 0.0})
from agents.llm.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
"""The stand-in of a language model's engine, which ends at SIGTERM also while clients read, as vLLM does."""


@in_loop
async def test_streams_of_a_language_model_end_before_its_deleted_pod_does(
    node: Node, cluster: Cluster
) -> None:
    pre_stop = cluster.kubelet.pre_stop = threading.Event()
    node.own_template = Template(
        name="engine",
        server="vllm",
        command=(
            *(sys.executable, "-c", CUTS_STREAMS, "--served-model-name", "{service}"),
            *("--host", "{host}", "--port", "{port}", "--step-ms", "10"),
        ),
        environment={"PYTHONPATH": str(Path(__file__).parents[3])},
        batch_change="restart",
    )
    engine = EngineCommand(
        gpus=(1, 0),
        max_num_batched_tokens=512,
        max_num_seqs=64,
        max_model_len=4096,
        drain_s=8.0,
    )
    launch = a_launch(replica=structs.replace(a_replica(), engine=engine))
    async with node.workers() as workers, aiohttp.ClientSession() as session:
        await workers.start(launch)
        await until(lambda: the(workers).state == "ready")
        body = {"model": "chat", "prompt": "a b c", "max_tokens": 100, "stream": True}
        url = f"{the(workers).url}/v1/completions"
        async with session.post(url, json=body) as stream:
            await stream.content.readuntil(b"\n\n")
            await delete_as_others_do(cluster)
            await until(lambda: the(workers).state != "ready")
            rest = await stream.read()
        # A second of tokens after the deletion, of which none is missing.
        assert rest.count(b"data:") == 100
        assert rest.rstrip().endswith(b"[DONE]")
        pre_stop.set()
        await until(lambda: the(workers).state == "failed")
        await until_no_pods(cluster)
    assert cluster.kubelet.killed == []
