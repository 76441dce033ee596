"""Requests to replicas in Pods of a real node, while the agent is updated, Pods are deleted and the API server is away.

    python -m bench.pods_node --testbed DIR --images DIR [--scripts DIR] [--rate 100] [--updates 2] [--away-s 600]

Needs root, a built testbed (`make test-kubernetes` builds one; kubelet: `TARGETS=kubelet build.sh`, `node.sh fetch`)
and images as `podman save` writes them: fake-gpus.tar and router.tar (targets of deploy/Dockerfile, as
localhost/plimsoll-fake-gpus and localhost/plimsoll-router) and pause.tar. Kubelet, containerd, API server, scheduler
and controllers are real; agents, MPS daemons, router and replicas are Pods of overlay `demo`. The control plane is a
process, since the testbed has no kube-proxy. Prints a table and writes bench/results/pods_node.json.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from agents.kubernetes.api import SERVICE_ACCOUNT
from bench.gateway import (
    GatewayDeployment,
    control_plane,
    is_settled,
    send,
)
from bench.report import Figures, print_table, write_results

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "deploy/kubernetes"
NODE = "gpu-real"
"""As the scripts name it."""
API = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "16443"}
"""Without kube-proxy the address that Pods are given leads nowhere."""
HOST_FOLDERS = (
    "/var/lib/plimsoll-agent",
    "/var/lib/plimsoll-agent-workers",
    "/run/plimsoll-mps",
)
WAIT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Testbed:
    """A cluster of one node, and how it is spoken to."""

    directory: Path
    scripts: Path

    def run(self, script: str, *words: str) -> None:
        subprocess.run(
            [str(self.scripts / script), *words],
            # What is not there any more cannot be stopped.
            check=words[0] == "start",
            stdout=subprocess.DEVNULL,
            env={**os.environ, "DIR": str(self.directory)},
        )

    def kubectl(self, *words: str, text: str = "") -> str:
        """What it prints; it reads the text."""
        done = subprocess.run(
            [str(self.directory / "bin/kubectl"), *words],
            check=True,
            capture_output=True,
            text=True,
            input=text,
            env={
                **os.environ,
                "KUBECONFIG": str(self.directory / "run/admin.kubeconfig"),
            },
        )
        return done.stdout

    def replicas(self) -> list[Any]:
        """Pods of the service."""
        label = "plimsoll/service=chat"
        found = self.kubectl(
            "-n", "plimsoll-replicas", "get", "pods", "-l", label, "-o", "json"
        )
        return list(json.loads(found)["items"])

    def signal_api(self, number: int) -> None:
        pid = int((self.directory / "run/kube-apiserver.pid").read_text())
        os.kill(pid, number)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--testbed", type=Path, required=True, metavar="DIR")
    parser.add_argument("--images", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--scripts",
        type=Path,
        default=ROOT.parent / "shared/kubernetes",
        metavar="DIR",
        help="with run.sh and node.sh (default: %(default)s)",
    )
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--updates", type=int, default=2, help="of the agent")
    parser.add_argument("--deletions", type=int, default=2, help="of a replica's Pod")
    parser.add_argument("--away-s", type=float, default=600.0, help="of the API server")
    options = parser.parse_args()
    bed = Testbed(directory=options.testbed.absolute(), scripts=options.scripts)
    with running_cluster(bed, options.images):
        rows = asyncio.run(_measure(bed, options))
    print_table(rows)
    write_results("pods_node", rows)


@contextmanager
def running_cluster(bed: Testbed, images: Path) -> Iterator[None]:
    """Its node is ready; nothing of it is left afterwards."""
    tars = [str(images / f"{name}.tar") for name in ("fake-gpus", "router", "pause")]
    bed.run("run.sh", "start", "scheduler", "controllers")
    try:
        bed.run("node.sh", "start", *tars)
        for state in ("create", "condition=Ready"):
            bed.kubectl(
                "wait", f"node/{NODE}", f"--for={state}", f"--timeout={WAIT_S}s"
            )
        bed.kubectl("label", "node", NODE, "plimsoll/gpus=true")
        # Of the scripts, which know another name.
        bed.kubectl("taint", "node", NODE, "plimsoll.example/gpus-")
        yield
    finally:
        bed.run("node.sh", "stop")
        bed.run("run.sh", "stop")
        for each in HOST_FOLDERS:
            shutil.rmtree(each, ignore_errors=True)


async def _measure(bed: Testbed, options: argparse.Namespace) -> list[Figures]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("namespaces", "control-plane-rights"):
            bed.kubectl("apply", "-f", str(MANIFESTS / f"base/{name}.yaml"))
        stack.enter_context(_service_account(bed))
        made = await stack.enter_async_context(
            control_plane(
                folder, PLIMSOLL_KUBERNETES_NAMESPACE="plimsoll-replicas", **API
            )
        )
        made = replace(made, gateway="http://127.0.0.1:8000")
        bed.kubectl("apply", "-k", str(_manifests(folder, made.url)))
        await _until_node_reports(made)
        spec = {
            "network": "resnet50",
            "slo": {"latency_ms": 1000, "percentile": 0.9},
            "scaling": {"min_replicas": 2},
        }
        await made.put("Service", "services/chat", spec)
        await made.until("first replicas", is_settled)
        changes: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "the agent is updated": (options.updates, lambda: _update(bed)),
            "somebody deletes a replica's Pod": (
                options.deletions,
                lambda: _delete(bed, made),
            ),
            f"the API server hangs for {options.away_s:g} s": (
                1,
                lambda: _hang(bed, options.away_s),
            ),
        }
        return [
            await _row(bed, made, what, times=times, change=change, rate=options.rate)
            for what, (times, change) in changes.items()
        ]


@contextmanager
def _service_account(bed: Testbed) -> Iterator[None]:
    """The control plane's, where every process of a Pod finds its own."""
    namespace = ("-n", "plimsoll")
    bed.kubectl(*namespace, "create", "serviceaccount", "plimsoll")
    path = "/api/v1/namespaces/plimsoll/serviceaccounts/plimsoll/token"
    wanted = {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "spec": {"expirationSeconds": 12 * 3600},
    }
    made = bed.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(wanted))
    SERVICE_ACCOUNT.mkdir(parents=True)
    try:
        token = json.loads(made)["status"]["token"]
        (SERVICE_ACCOUNT / "token").write_text(token)
        shutil.copy(bed.directory / "run/pki/ca.crt", SERVICE_ACCOUNT)
        yield
    finally:
        shutil.rmtree(SERVICE_ACCOUNT)


def _manifests(folder: Path, url: str) -> Path:
    """Overlay `demo` without the control plane, for the images and the addresses of the testbed."""
    shutil.copytree(MANIFESTS / "base", folder / "base")
    overlay = yaml.safe_load((MANIFESTS / "demo/kustomization.yaml").read_text())
    listed = yaml.safe_load((folder / "base/kustomization.yaml").read_text())
    overlay["resources"] = [
        f"base/{each}"
        for each in listed["resources"]
        if not each.startswith("control-plane")
    ]
    (templates,) = listed["configMapGenerator"]
    templates["files"] = ["base/templates.toml"]
    overlay["configMapGenerator"] = [templates]
    local = {"newTag": "latest"}
    overlay["images"] = [
        {
            "name": "plimsoll-agent",
            "newName": "localhost/plimsoll-fake-gpus",
            **local,
        },
        {"name": "plimsoll-router", "newName": "localhost/plimsoll-router", **local},
    ]
    container = "/spec/template/spec/containers/0"
    overlay["patches"] = json.loads(
        json.dumps(overlay["patches"]).replace("http://plimsoll-api.plimsoll:8080", url)
    )
    overlay["patches"] += [
        {
            "target": {"kind": "DaemonSet"},
            "patch": yaml.safe_dump(
                [
                    {
                        "op": "add",
                        "path": f"{container}/imagePullPolicy",
                        "value": "Never",
                    }
                ]
            ),
        },
        {
            "target": {"kind": "DaemonSet", "name": "plimsoll-agent"},
            "patch": yaml.safe_dump(
                [
                    {
                        "op": "add",
                        "path": f"{container}/env/-",
                        "value": {"name": name, "value": value},
                    }
                    for name, value in API.items()
                ]
            ),
        },
    ]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return folder


async def _until_node_reports(made: GatewayDeployment) -> None:
    async with asyncio.timeout(WAIT_S):
        while not (await made.call("GET", "nodes"))["items"]:  # noqa: ASYNC110
            await asyncio.sleep(0.5)


async def _row(
    bed: Testbed,
    made: GatewayDeployment,
    what: str,
    *,
    times: int,
    change: Callable[[], Awaitable[None]],
    rate: float,
) -> Figures:
    stop = asyncio.Event()
    sending = asyncio.create_task(send(made, rate, stop))
    # The plan follows the load first, so that what is measured is the change.
    await asyncio.sleep(20.0)
    await made.until("the load's plan", is_settled)
    kept = {each["metadata"]["name"] for each in bed.replicas()}
    for _ in range(times):
        await change()
        await made.until(what, is_settled)
    stop.set()
    answers = await sending
    left = [each for each in bed.replicas() if each["metadata"]["name"] in kept]
    latencies_ms = sorted(answers.latencies_ms)
    return {
        "while": what,
        "times": times,
        "requests": answers.statuses.total(),
        "failed": answers.errors,
        "p99_ms": round(latencies_ms[int(0.99 * len(latencies_ms))]),
        "pods_before": len(kept),
        "of_them_left": len(left),
        "restarts": sum(
            status["restartCount"]
            for each in left
            for status in each["status"]["containerStatuses"]
        ),
    }


async def _update(bed: Testbed) -> None:
    for words in (
        ("restart", "daemonset/plimsoll-agent"),
        ("status", "daemonset/plimsoll-agent", f"--timeout={WAIT_S}s"),
    ):
        await asyncio.to_thread(
            bed.kubectl, "-n", "plimsoll-replicas", "rollout", *words
        )


async def _delete(bed: Testbed, made: GatewayDeployment) -> None:
    name = bed.replicas()[0]["metadata"]["name"]
    await asyncio.to_thread(
        bed.kubectl, "-n", "plimsoll-replicas", "delete", "pod", name
    )
    await made.until("another replica", is_settled)


async def _hang(bed: Testbed, seconds: float) -> None:
    bed.signal_api(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        bed.signal_api(signal.SIGCONT)


if __name__ == "__main__":
    main()
