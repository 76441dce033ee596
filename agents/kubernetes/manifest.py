"""A replica or task as a Pod: its name and its manifest. Pure.

pod_name(node, part, mark)          the same for ever, so that creating it twice is creating it once
manifest(Prepared, PodSettings)     what is sent to the API; `agents.kubernetes.pod` is what comes back
"""

import hashlib
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from agents.processes.launch import Prepared
from agents.processes.process import KILL_LIMIT_S, TERMINATE_LIMIT_S
from agents.processes.procfs import MARK

NODE, MARK_LABEL, PART = "plimsoll/node", "plimsoll/mark", "plimsoll/part"
SERVICE, TASK = "plimsoll/service", "plimsoll/task"
MANAGED_BY = {"app.kubernetes.io/managed-by": "plimsoll-agent"}
"""Label of every Pod that an agent has created."""
GPUS = "plimsoll/gpus"
"""Label and taint of nodes whose GPUs are Plimsoll's."""
MPS_APP = "plimsoll-mps"
"""Label `app` of the Pod of a node's MPS daemons."""
HOST = "PLIMSOLL_HOST"
"""Variable in which each Pod has its own address."""
CONTAINER = "worker"
GPU_CLAIM = "gpus"
LEAVES_ROUTES_S = 5
"""Within it routes have long been switched."""
ENDED_BEFORE_S = TERMINATE_LIMIT_S + KILL_LIMIT_S + 10.0
"""So long before kubelet's SIGKILL the agent begins with its own."""
_UNSAFE = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """How a node runs its Pods."""

    node: str
    """Its name in the cluster."""
    namespace: str = "plimsoll-replicas"
    image: str = ""
    """What templates run that name none; empty: that of `own_pod`."""
    own_pod: str = ""
    """The agent's own Pod, in the same namespace."""
    priority_class: str = "plimsoll-replica"
    runtime_class: str = ""
    """Empty: the cluster's default."""
    uses_gpu_claim: bool = False
    """Whether Pods get GPUs by a ResourceClaim, that of the daemons of MPS, and not by a variable."""
    gpu_claim: str = ""
    """Its name, looked up for each Pod."""
    shared_memory: Path | None = None
    """The MPS daemon's, which its clients must have as their /dev/shm; None: each Pod has its own."""
    logs: Path = Path("/var/log/pods")
    """Where kubelet keeps what containers write."""

    @property
    def path(self) -> str:
        """Where its Pods are in the API."""
        return f"/api/v1/namespaces/{self.namespace}/pods"


def pod_name(node: str, part: str, mark: str) -> str:
    """A name for the Pod of that start of a replica or task, in the alphabet of DNS."""
    digest = hashlib.sha256("\0".join((node, part, mark)).encode()).hexdigest()[:12]
    readable = _UNSAFE.sub("-", part.lower()).strip("-")[:48].rstrip("-")
    return f"{readable}-{digest}" if readable else digest


def label_value(text: str) -> str:
    """The text as a label, which may have 63 characters."""
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", text):
        return text
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def serves_on_s(prepared: Prepared) -> int:
    """From somebody else's deletion to SIGTERM: routes are switched meanwhile, and streams of tokens end."""
    streams_s = 0.0 if prepared.engine is None else prepared.engine.drain_s
    return max(LEAVES_ROUTES_S, math.ceil(streams_s))


def grace_s(prepared: Prepared) -> int:
    """From a deletion to kubelet's SIGKILL. The agent must be done before: SIGKILL can hang a GPU for all clients of
    MPS that have not been asked to let go."""
    drain_s = prepared.template.drain_limit_s
    return serves_on_s(prepared) + math.ceil(drain_s + ENDED_BEFORE_S)


def manifest(prepared: Prepared, settings: PodSettings) -> dict[str, object]:
    """The Pod of what is prepared."""
    spawn, template = prepared.spawn, prepared.template
    name = pod_name(settings.node, prepared.name, spawn.mark)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {
                **MANAGED_BY,
                NODE: label_value(settings.node),
                MARK_LABEL: spawn.mark,
                PART: "task" if template.is_task else "replica",
                TASK if template.is_task else SERVICE: label_value(prepared.serves),
            },
            "annotations": {"plimsoll/name": prepared.name},
        },
        "spec": {
            # A restart by kubelet would skip the proof of the share.
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace_s(prepared),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "priorityClassName": settings.priority_class,
            **(
                {"runtimeClassName": settings.runtime_class}
                if settings.runtime_class
                else {}
            ),
            **({"resourceClaims": [_claim(settings)]} if settings.gpu_claim else {}),
            # By the scheduler and not by `nodeName`, so that CPU and memory are counted.
            "affinity": {"nodeAffinity": only_on(settings.node)},
            "tolerations": [{"key": GPUS, "operator": "Exists"}],
            "securityContext": _user(prepared),
            "containers": [_container(prepared, settings)],
            "volumes": [
                {"name": each_name, **source}
                for each_name, source, _, _ in _volumes(prepared, settings)
            ],
        },
    }


def _container(prepared: Prepared, settings: PodSettings) -> dict[str, object]:
    spawn, pod = prepared.spawn, prepared.template.pod
    variables = {**spawn.environment, MARK: spawn.mark}
    # The toolkit of the driver's containers reads this one, CUDA the other.
    if gpu := spawn.environment.get("CUDA_VISIBLE_DEVICES"):
        variables["NVIDIA_VISIBLE_DEVICES"] = gpu
    claims: dict[str, object] = {}
    if settings.gpu_claim:
        # All of the node's, of which CUDA uses one. The toolkit must not add any to them.
        claims["claims"] = [{"name": GPU_CLAIM}]
        variables["NVIDIA_VISIBLE_DEVICES"] = "void"
    return {
        "name": CONTAINER,
        "image": pod.image or settings.image,
        "imagePullPolicy": pod.pull,
        "command": [_literal(word) for word in spawn.command],
        "workingDir": str(spawn.directory),
        "env": [
            {"name": HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *(
                {"name": name, "value": _literal(text)}
                for name, text in sorted(variables.items())
            ),
        ],
        # A Pod that cannot exceed the memory it has asked for is among the last to be evicted. With a limit of CPU the
        # kernel would stop it in the middle of a batch, whatever is idle next to it.
        "resources": {
            "requests": pod.resources,
            "limits": {
                name: amount for name, amount in pod.resources.items() if name != "cpu"
            },
            **claims,
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **_readiness(prepared),
        # The agent asks the server itself, and proves its share; a liveness probe would only kill what is busy.
        "lifecycle": {
            "preStop": {"exec": {"command": ["sleep", str(serves_on_s(prepared))]}}
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": name, "mountPath": path, "readOnly": is_read_only}
            for name, _, path, is_read_only in _volumes(prepared, settings)
        ],
    }


def _claim(settings: PodSettings) -> dict[str, object]:
    return {"name": GPU_CLAIM, "resourceClaimName": settings.gpu_claim}


def _readiness(prepared: Prepared) -> dict[str, object]:
    """For kubectl and for disruption budgets; requests come when the agent says so."""
    if not prepared.filled.ports:
        return {}
    probe = {"tcpSocket": {"port": prepared.filled.ports[0]}, "periodSeconds": 2}
    return {"readinessProbe": probe}


def _volumes(
    prepared: Prepared, settings: PodSettings
) -> list[tuple[str, dict[str, object], str, bool]]:
    """Name, source, path in the container, and whether it is read-only."""
    spawn = prepared.spawn
    found: list[tuple[str, dict[str, object], str, bool]] = [
        ("tmp", {"emptyDir": {}}, "/tmp", False),
        ("directory", _host(spawn.directory), str(spawn.directory), False),
    ]
    pipe = spawn.environment.get("CUDA_MPS_PIPE_DIRECTORY", "")
    # Where GPUs are shared by turns the variable names a folder that does not exist.
    if pipe and Path(pipe).is_dir():
        found.append(("mps", _host(Path(pipe)), pipe, False))
    # Looked at now, since the daemons' Pod, which makes it, may start after the agent.
    if settings.shared_memory is not None and settings.shared_memory.is_dir():
        found.append(("shm", _host(settings.shared_memory), "/dev/shm", False))
    # GPUs of one replica talk to each other through it, for which a container's usual 64 MiB are too few.
    elif prepared.engine is not None and len(prepared.engine.gpus) > 1:
        found.append(("shm", {"emptyDir": {"medium": "Memory"}}, "/dev/shm", False))
    for number, each in enumerate(prepared.template.pod.volumes):
        source: dict[str, object] = (
            {
                "persistentVolumeClaim": {
                    "claimName": each.claim,
                    "readOnly": each.read_only,
                }
            }
            if each.claim
            else _host(Path(each.host_path))
        )
        found.append((f"volume-{number}", source, each.path, each.read_only))
    return found


def _host(path: Path) -> dict[str, object]:
    return {"hostPath": {"path": str(path), "type": "Directory"}}


def _user(prepared: Prepared) -> dict[str, object]:
    # One user per MPS server: the one that the agent's processes would have.
    user = prepared.spawn.user
    uid, gid = (os.geteuid(), os.getegid()) if user is None else (user.uid, user.gid)
    groups = () if user is None else user.groups
    return {
        "runAsUser": uid,
        "runAsGroup": gid,
        **({"supplementalGroups": sorted(groups)} if groups else {}),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def only_on(node: str) -> dict[str, object]:
    """The node affinity of what must run on that node."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [field]}]
        }
    }


def _literal(text: str) -> str:
    """The text as Kubernetes takes it literally: `$(NAME)` would be a variable's value."""
    return text.replace("$(", "$$(")
