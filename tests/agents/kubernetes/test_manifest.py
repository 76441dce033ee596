"""A replica as a Pod, and what a Pod's status says: pure functions."""

from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import msgspec
import pytest
from msgspec import structs

from agents.base.protocol import EngineCommand
from agents.kubernetes.manifest import PodSettings, grace_s, manifest, pod_name
from agents.kubernetes.pod import Pod
from agents.kubernetes.pod_log import PodLog
from agents.processes.launch import Prepared
from agents.processes.process import Spawn
from agents.processes.templates import Filled, PodTemplate, PodVolume, Template
from agents.processes.user import WorkerUser

NO_POD = PodTemplate()
NEWEST = "1.37"
SETTINGS = PodSettings(node="gpu-1.example", image="worker:1")
USER = WorkerUser(
    name="w", uid=10002, gid=10003, groups=(44, 10003), home="/", folders=Path("/f")
)


def prepared(directory: Path, *, pod: PodTemplate = NO_POD) -> Prepared:
    template = Template(name="t", command=("serve",), drain_limit_s=60.0, pod=pod)
    spawn = Spawn(
        command=("serve", "--motto", "$(HOME) of {x}"),
        environment={
            "CUDA_VISIBLE_DEVICES": "GPU-7",
            "CUDA_MPS_PIPE_DIRECTORY": str(directory),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33.3334",
        },
        directory=directory,
        log=directory / "log",
        mark="a.b",
        user=USER,
    )
    filled = Filled(
        command=("serve",),
        environment={},
        files={},
        served_as="chat",
        readiness_path="",
        warm_up=None,
    )
    return Prepared(
        name="chat-0~2", serves="chat", spawn=spawn, filled=filled, template=template
    )


def spec(made: dict[str, object]) -> dict[str, object]:
    return msgspec.convert(made["spec"], dict[str, object])


def container(made: dict[str, object]) -> dict[str, object]:
    (only,) = msgspec.convert(spec(made)["containers"], list[dict[str, object]])
    return only


def test_a_name_is_the_same_for_ever_and_another_for_every_start() -> None:
    name = pod_name("n1", "Chat_0~2", "a.b")
    assert name == pod_name("n1", "Chat_0~2", "a.b")
    assert name.startswith("chat-0-2-") and len(name) <= 63
    others = (("n2", "Chat_0~2", "a.b"), ("n1", "c", "a.b"), ("n1", "Chat_0~2", "a.c"))
    assert len({name, *(pod_name(*each) for each in others)}) == 4
    assert pod_name("n1", "~" * 300, "a.b").isalnum()


def test_the_share_the_user_and_the_node_are_in_the_manifest(tmp_path: Path) -> None:
    made = manifest(prepared(tmp_path), SETTINGS)
    variables = {
        each["name"]: each.get("value")
        for each in msgspec.convert(container(made)["env"], list[dict[str, object]])
    }
    assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "33.3334"
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "GPU-7"
    assert variables["PLIMSOLL_MARK"] == "a.b"
    assert spec(made)["securityContext"] == {
        "runAsUser": 10002,
        "runAsGroup": 10003,
        "supplementalGroups": [44, 10003],
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert "gpu-1.example" in repr(spec(made)["affinity"])
    assert spec(made)["restartPolicy"] == "Never"
    assert "livenessProbe" not in container(made)


def test_words_of_a_command_are_taken_literally(tmp_path: Path) -> None:
    """Kubernetes would put a variable's value in the place of its name."""
    made = manifest(prepared(tmp_path), SETTINGS)
    assert container(made)["command"] == ["serve", "--motto", "$$(HOME) of {x}"]


def test_a_pod_has_only_its_own_folders_and_those_of_its_template(
    tmp_path: Path,
) -> None:
    volume = PodVolume(path="/models", claim="models")
    resources = {"cpu": "2", "memory": "3Gi"}
    pod = PodTemplate(image="other:2", resources=resources, volumes=(volume,))
    made = manifest(prepared(tmp_path, pod=pod), SETTINGS)
    mounts = msgspec.convert(
        container(made)["volumeMounts"], list[dict[str, str | bool]]
    )
    assert [(each["mountPath"], each["readOnly"]) for each in mounts] == [
        ("/tmp", False),
        (str(tmp_path), False),
        (str(tmp_path), False),
        ("/models", True),
    ]
    assert container(made)["image"] == "other:2"
    assert container(made)["resources"] == {
        "requests": resources,
        "limits": {"memory": "3Gi"},
    }
    shared = replace(SETTINGS, shared_memory=tmp_path / "shm")
    assert "'/dev/shm'" not in repr(container(manifest(prepared(tmp_path), shared)))
    # The Pod of the daemons came after the agent.
    (tmp_path / "shm").mkdir()
    assert "'/dev/shm'" in repr(container(manifest(prepared(tmp_path), shared)))


def test_streams_of_tokens_end_before_sigterm_and_gpus_share_memory(
    tmp_path: Path,
) -> None:
    engine = EngineCommand(
        gpus=(0, 1),
        max_num_batched_tokens=512,
        max_num_seqs=64,
        max_model_len=4096,
        drain_s=300.0,
    )
    model = replace(prepared(tmp_path), engine=engine)

    made = manifest(model, SETTINGS)

    sleep = ["sleep", "300"]
    assert container(made)["lifecycle"] == {"preStop": {"exec": {"command": sleep}}}
    assert grace_s(model) >= 300 + 60 + 20
    volumes = msgspec.convert(spec(made)["volumes"], list[dict[str, object]])
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in volumes
    # One GPU has no other to talk to.
    alone = replace(model, engine=structs.replace(engine, gpus=(0,)))
    assert "'/dev/shm'" not in repr(container(manifest(alone, SETTINGS)))


def test_kubelets_sigkill_comes_after_the_agents_own(tmp_path: Path) -> None:
    assert grace_s(prepared(tmp_path)) >= 60 + 5 + 20


def a_status(phase: str, **state: object) -> dict[str, object]:
    """What its kubelet says of the Pod's only container."""
    return {"phase": phase, "containerStatuses": [{"state": state}]}


UNPLACED = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are free"}
    ],
}
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "low on memory."}
OUT_OF_MEMORY = {"exitCode": 137, "reason": "OOMKilled"}


@pytest.mark.parametrize(
    ("status", "is_over", "exit_code", "text"),
    [
        ({"phase": "Pending"}, False, None, ""),
        (UNPLACED, False, None, "finds no place for it: 0/3 nodes are free"),
        (
            a_status("Pending", waiting={"reason": "ImagePullBackOff"}),
            *(False, None, "its image cannot be pulled (ImagePullBackOff)"),
        ),
        (
            a_status("Pending", waiting={"reason": "ContainerCreating"}),
            *(False, None, ""),
        ),
        (
            a_status("Failed", terminated=OUT_OF_MEMORY),
            *(True, -9, "more memory than `resources`"),
        ),
        (EVICTED, True, None, "it was evicted: low on memory. Give the node room"),
        (a_status("Failed", terminated={"exitCode": 3}), True, 3, ""),
    ],
)
def test_what_a_status_says(
    status: dict[str, object], is_over: bool, exit_code: int | None, text: str
) -> None:
    pod = msgspec.convert({"metadata": {"name": "p"}, "status": status}, Pod)
    assert (pod.is_over, pod.exit_code) == (is_over, exit_code)
    said = pod.why_over if is_over else pod.pending
    assert text in said and bool(text) == bool(said)


def kubelet_writes(source: Path, *lines: str) -> None:
    source.mkdir(exist_ok=True)
    with (source / "0.log").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_a_log_is_copied_without_times_across_rotations_and_agents(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "worker", tmp_path / "r1.log"
    log = PodLog(source, target)
    log.copy()
    assert not target.exists(), "kubelet has written nothing yet"
    kubelet_writes(
        source,
        "2026-11-27T12:00:00.000000001Z stdout F one",
        "2026-11-27T12:00:00.000000002Z stderr P tw",
        "2026-11-27T12:00:00.000000003Z stderr F o",
    )
    log.copy()
    assert target.read_text() == "one\ntwo\n"
    kubelet_writes(source, "2026-11-27T12:00:01.5Z stdout F three")
    (source / "0.log").rename(source / "0.log.20261127")
    kubelet_writes(source, "2026-11-27T14:00:02+02:00 stdout F four")
    log.copy()
    assert target.read_text() == "one\ntwo\nthree\nfour\n"
    log.close()
    kubelet_writes(source, "2026-11-27T12:00:03Z stdout F five")
    log.copy()
    assert "five" not in target.read_text(), "it is closed"
    later = PodLog(source, target)
    later.copy()
    later.close()
    assert target.read_text() == "one\ntwo\nthree\nfour\nfive\n"
    assert target.stat().st_mtime == 1795780803.0


def test_a_claim_of_gpus_takes_the_place_of_the_variable(tmp_path: Path) -> None:
    claimed = replace(SETTINGS, uses_gpu_claim=True, gpu_claim="mps-x7-gpus-k2")
    made = manifest(prepared(tmp_path), claimed)
    assert spec(made)["resourceClaims"] == [
        {"name": "gpus", "resourceClaimName": "mps-x7-gpus-k2"}
    ]
    resources = msgspec.convert(container(made)["resources"], dict[str, object])
    assert resources["claims"] == [{"name": "gpus"}]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in msgspec.convert(
        container(made)["env"], list[dict[str, object]]
    )
    # CUDA still has to know which one it is.
    assert "GPU-7" in repr(container(made)["env"])


@pytest.mark.parametrize("claim", ["", "mps-x7-gpus-k2"])
def test_the_newest_kubernetes_takes_the_manifest(tmp_path: Path, claim: str) -> None:
    """Where the real one of other tests is too old to know all of it."""
    volume = PodVolume(path="/models", claim="models")
    made = manifest(
        prepared(tmp_path, pod=PodTemplate(volumes=(volume,))),
        replace(SETTINGS, gpu_claim=claim, runtime_class="nvidia"),
    )
    kubernetes_validate.validate(made, NEWEST, strict=True)
