"""The manifests of deploy/kubernetes say what the programs take, and give no more rights than they need."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agents.gateway.command import make_parser as make_gateway_parser
from agents.gpu.node.mps_daemons import make_parser as make_mps_parser
from agents.gpu.node.open import ROUTER_MARK
from agents.main import make_parser
from agents.processes.template_file import load_templates
from app.kubernetes.node_identity import AGENT_ACCOUNT, AUDIENCE
from app.kubernetes.objects import API_VERSION, GROUP
from app.manifests.objects import ServiceSpec
from tools.documents import resources

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
BASE = FOLDER / "base"
Object = Mapping[str, Any]
NEWEST = "1.37"
OTHERS = (GROUP, "monitoring.coreos.com", "keda.sh", "gateway.networking.k8s.io")


def documents(folder: Path) -> Iterator[Object]:
    for path in sorted(folder.glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def the(kind: str, name: str) -> Object:
    found = [
        each
        for each in documents(BASE)
        if each["kind"] == kind and each["metadata"]["name"] == name
    ]
    assert len(found) == 1, (kind, name)
    return found[0]


def container(kind: str, name: str) -> Object:
    only: Object
    (only,) = the(kind, name)["spec"]["template"]["spec"]["containers"]
    return only


def arguments_of_the_demo(name: str) -> list[str]:
    """What the overlay gives the container, after the program that the fake node becomes."""
    overlay = yaml.safe_load((FOLDER / "demo/kustomization.yaml").read_text())
    (patch,) = (
        yaml.safe_load(each["patch"])
        for each in overlay["patches"]
        if each["target"]["name"] == name
    )
    words = next(each["value"] for each in patch if each["path"].endswith("/args"))
    return list(words[words.index("plimsoll-agent") + 1 :])


def test_resources_are_as_the_manifests_have_them() -> None:
    for path, text in resources.documents().items():
        assert path.read_text() == text, "run: python -m tools.documents.resources"


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted(FOLDER.rglob("*.yaml"))
        if path.name != "kustomization.yaml"
    ],
    ids=lambda path: str(path.relative_to(FOLDER)),
)
def test_the_newest_kubernetes_takes_the_file(path: Path) -> None:
    """Where the real one of other tests is too old to know all of it."""
    for each in yaml.safe_load_all(path.read_text()):
        with suppress_unknown(each["apiVersion"]):
            kubernetes_validate.validate(each, NEWEST, strict=True)


def suppress_unknown(version: str) -> AbstractContextManager[None]:
    """Kinds of others, which no Kubernetes has by itself."""
    if version.partition("/")[0] in OTHERS:
        return suppress(kubernetes_validate.SchemaNotFoundError)
    return nullcontext()


def test_everything_that_is_there_is_applied_and_the_example_is_a_service() -> None:
    example = yaml.safe_load((FOLDER / "example.yaml").read_text())
    assert example["apiVersion"] == API_VERSION
    ServiceSpec.model_validate(example["spec"])
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    there = {path.name for path in BASE.glob("*.yaml")}
    assert set(listed) == there - {"kustomization.yaml"}


@pytest.mark.parametrize(
    "words",
    [
        container("DaemonSet", "plimsoll-agent")["args"],
        arguments_of_the_demo("plimsoll-agent"),
    ],
    ids=["base", "demo"],
)
def test_the_agent_takes_its_arguments(words: list[str]) -> None:
    options = make_parser().parse_args(words)
    assert (options.launcher, options.router, options.keep_replicas) == (
        "kubernetes",
        "haproxy",
        True,
    )
    volumes = container("DaemonSet", "plimsoll-agent")["volumeMounts"]
    mounted = {Path(each["mountPath"]) for each in volumes}
    state = Path("/var/lib/plimsoll-agent")
    assert {state, state.with_name(f"{state.name}-workers"), options.mps_dir} <= mounted


def test_templates_and_the_daemons_of_mps_are_where_the_agent_looks_for_them() -> None:
    words = container("DaemonSet", "plimsoll-mps")["args"]
    assert words[0] == "mps"
    agents = make_parser().parse_args(container("DaemonSet", "plimsoll-agent")["args"])
    mine = make_mps_parser().parse_args(words[1:])
    assert (mine.mps_dir, mine.worker_user) == (agents.mps_dir, agents.worker_user)
    mounts = container("DaemonSet", "plimsoll-agent")["volumeMounts"]
    assert str(agents.templates.parent) in {each["mountPath"] for each in mounts}
    assert load_templates(BASE / "templates.toml").find("resnet50").command
    # Clients have that folder as their /dev/shm (agents.daemon.build).
    volumes = the("DaemonSet", "plimsoll-mps")["spec"]["template"]["spec"]["volumes"]
    shm = next(each for each in volumes if each["name"] == "shm")
    assert shm["hostPath"]["path"] == str(mine.mps_dir / "shm")


def test_the_router_is_found_by_its_mark_and_has_the_agents_folder() -> None:
    router = container("DaemonSet", "plimsoll-router")
    variables = {each["name"]: each["value"] for each in router["env"]}
    assert variables["PLIMSOLL_MARK"] == ROUTER_MARK
    assert router["args"] == ["/var/lib/plimsoll-agent/haproxy"]
    assert router["args"][0] in {each["mountPath"] for each in router["volumeMounts"]}


def test_the_gateway_takes_its_arguments() -> None:
    path = FOLDER / "components/gateway/gateway.yaml"
    deployment = next(yaml.safe_load_all(path.read_text()))
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    options = make_gateway_parser().parse_args(only["args"][1:])
    mounted = {Path(each["mountPath"]) for each in only["volumeMounts"]}
    assert options.token_file.parent in mounted
    assert options.state_dir.parent in mounted
    assert {"containerPort": options.port, "name": "http"} in only["ports"]


def test_the_agent_of_the_overlay_for_claims_takes_its_arguments() -> None:
    overlay = yaml.safe_load((FOLDER / "gpus-dra/kustomization.yaml").read_text())
    words = list(container("DaemonSet", "plimsoll-agent")["args"])
    for each in overlay["patches"]:
        words += [
            change["value"]
            for change in yaml.safe_load(each["patch"])
            if change["path"].endswith("/args/-")
        ]
    assert make_parser().parse_args(words).pod_gpu_claim


def test_an_agent_may_ask_for_pods_of_one_namespace_and_nothing_else() -> None:
    assert the("Role", "plimsoll-agent")["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["pods"],
            "verbs": ["get", "list", "watch", "create", "delete"],
        }
    ]


def test_the_control_plane_creates_no_pod_and_reads_no_secret() -> None:
    rules = [
        rule
        for kind in ("ClusterRole", "Role")
        for rule in the(kind, "plimsoll")["rules"]
    ]
    resources = {name for rule in rules for name in rule["resources"]}
    assert resources.isdisjoint({"secrets", "configmaps", "pods/exec", "pods/log"})
    (pods,) = (rule for rule in rules if "pods" in rule["resources"])
    assert set(pods["verbs"]) == {"get", "list", "watch", "patch"}
    assert all("*" not in each for rule in rules for each in rule.values())


def test_the_agents_token_is_for_the_control_plane_alone() -> None:
    volumes = the("DaemonSet", "plimsoll-agent")["spec"]["template"]["spec"]["volumes"]
    (source,) = next(each for each in volumes if each["name"] == "identity")[
        "projected"
    ]["sources"]
    assert source["serviceAccountToken"]["audience"] == AUDIENCE
    account = the("DaemonSet", "plimsoll-agent")["spec"]["template"]["spec"]
    assert account["serviceAccountName"] == AGENT_ACCOUNT


def test_no_secret_is_in_the_repository_and_no_pod_gets_a_token_without_asking() -> (
    None
):
    for each in documents(BASE):
        assert each["kind"] != "Secret"
        spec = each.get("spec", {}).get("template", {}).get("spec")
        if spec is not None:
            assert spec["automountServiceAccountToken"] is False, each["metadata"]


def test_the_control_plane_runs_as_nobody_in_particular() -> None:
    for kind, name in (("Deployment", "plimsoll-api"), ("Job", "plimsoll-upgrade")):
        pod = the(kind, name)["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        security = container(kind, name)["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}


def test_keda_takes_no_figure_for_an_error_and_keeps_what_runs() -> None:
    """Its executor leaves the scale to zero out at an error where there is a fallback above 0."""
    scaled = yaml.safe_load(
        (FOLDER / "components" / "keda" / "scaled-object.yaml").read_text()
    )["spec"]
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    # Several processes of the API say the same.
    assert trigger["metadata"]["query"].startswith("max(")
    assert scaled["fallback"]["replicas"] > 0
    assert scaled["fallback"]["behavior"] == "currentReplicasIfHigher"
