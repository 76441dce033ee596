"""The command against a real control plane: a real API on a socket, in front of a real PostgreSQL."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.cli.main import run
from tests.app.runner import Result, cli
from tests.integration.fault_harness import execute, rows
from tests.integration.kept_solver import warm_solver
from tests.integration.measured import let_the_api_fit_here
from tests.integration.served_api import ControlPlane, served_api

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]

MANIFESTS = """\
apiVersion: plimsoll/v1
kind: GpuType
metadata: {name: T4}
spec: {price_usd_per_hour: 0.526, memory_mib: 15360, idle_w: 10, power_cap_w: 70, clocks_mhz: [1590]}
---
apiVersion: plimsoll/v1
kind: Node
metadata: {name: n1, labels: {rack: a}}
spec: {gpus: [{index: 0, gpu_type: T4}, {index: 1, gpu_type: T4}]}
---
apiVersion: plimsoll/v1
kind: Network
metadata: {name: bert}
spec: {description: Text}
---
apiVersion: plimsoll/v1
kind: Profile
metadata: {name: bert.T4}
spec:
  network: bert
  gpu_type: T4
  rows:
  - [50, 1, 1590, 0.1, 0.1, 9.8, 2000, 20, 0.1]
  - [100, 1, 1590, 0.1, 0.1, 4.8, 2000, 40, 0.2]
---
apiVersion: plimsoll/v1
kind: Service
metadata: {name: chat}
spec:
  network: bert
  slo: {latency_ms: 100, percentile: 0.98}
"""


@pytest.fixture
def control_plane(database: str) -> Iterator[ControlPlane]:
    warm_solver()
    with served_api(database) as plane:
        yield plane


@pytest.fixture
def plimsoll(control_plane: ControlPlane) -> Callable[..., Result]:
    """Runs a command line against that control plane over real HTTP."""

    def call(
        *arguments: str | Path, stdin: str = "", token: str = control_plane.token
    ) -> Result:
        environment = {"PLIMSOLL_URL": control_plane.url, "PLIMSOLL_TOKEN": token}
        return cli(*arguments, api=None, stdin=stdin, environment=environment)

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "all.yaml"
    path.write_text(MANIFESTS)
    return path


def test_objects_are_applied_listed_described_changed_and_deleted(
    plimsoll: Callable[..., Result], file: Path
) -> None:
    assert plimsoll("diff", "-f", file).code == 1
    applied = plimsoll("apply", "-f", file, stdin="y\n")
    assert applied.code == 0
    assert applied.err.splitlines()[1:] == ["Apply? [y/N] "]
    assert "does not keep" not in applied.out
    again = plimsoll("apply", "-f", file)
    assert again.out.splitlines()[-1] == "0 to create, 0 to change, 5 unchanged."

    chat = plimsoll("get", "services").out.splitlines()[1].split()
    assert chat[:6] == ["chat", "bert", "p98", "≤", "100", "ms"]
    gpus = [line.split()[0] for line in plimsoll("get", "gpus").out.splitlines()[1:]]
    assert gpus == ["n1/gpu-0", "n1/gpu-1"]
    kinds = "nodes gpu-types networks profiles projects policies tokens"
    for kind in kinds.split():
        assert plimsoll("get", kind).code == 0
    described = plimsoll("describe", "service", "chat").out
    assert "Feasible" in described and "ServiceCreated" in described

    printed = plimsoll("get", "service", "chat", "-o", "yaml").out
    advised = printed.replace("mode: auto", "mode: advise")
    changed = plimsoll("apply", "-f", "-", "-y", stdin=advised)
    assert "    spec.mode: auto → advise" in changed.out
    kept = json.loads(plimsoll("get", "service", "chat", "-o", "json").out)
    assert kept["spec"]["mode"] == "advise"

    assert plimsoll("cordon", "n1").code == 0
    assert '"cordoned": true' in plimsoll("get", "node", "n1", "-o", "json").out
    assert plimsoll("delete", "service", "chat", "-y").out == "Service chat deleted\n"
    gone = plimsoll("get", "service", "chat")
    assert (gone.code, gone.err) == (1, "Error: no service is called 'chat'\n")
    found = [line.split()[3] for line in plimsoll("events").out.splitlines()]
    assert found[-3:] == ["ServiceChanged", "NodeCordoned", "ServiceDeleted"]


def test_planned_points_are_filled_in_sent_once_fitted_and_applied(
    plimsoll: Callable[..., Result],
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_the_api_fit_here(monkeypatch)
    assert plimsoll("apply", "-f", file, "-y").code == 0
    points, samples = tmp_path / "points.csv", tmp_path / "samples.csv"
    words = ["samples", "plan", "bert", "--gpu-type", "T4", "--count", "16", "-o"]
    assert plimsoll(*words, points).code == 0
    header, *rows = points.read_text().splitlines()
    batches = [float(row.split(",")[2]) for row in rows]
    filled = [
        f"{row},{5 + 2 * batch:g},{1000 + batch:g}"
        for row, batch in zip(rows, batches, strict=True)
    ]
    samples.write_text("\n".join([f"{header},latency_ms,memory_mib", *filled]) + "\n")
    for sent, kept in (("16", "0"), ("0", "16")):
        told = plimsoll("samples", "send", samples).out.splitlines()[1].split()
        assert told == ["bert", "16", sent, kept]
    applied = plimsoll("samples", "fit", "bert", "--apply")
    assert (applied.code, applied.err) == (0, "")
    assert applied.out.splitlines()[-1].startswith("T4 ")
    described = plimsoll("describe", "network", "bert").out.splitlines()
    (line,) = (line for line in described if line.startswith("    T4 "))
    assert "16" in line.split()
    lines = (
        "network,gpu_type,batch,sm_percent,latency_ms\nbert,T4,1,50,9\nbert,T5,1,50,9\n"
    )
    samples.write_text(lines)
    refused = plimsoll("samples", "send", samples)
    wrong = f"{samples}:3: column gpu_type: no GPU type is called 'T5'; there are T4"
    assert refused.err == f"Error: {wrong}\n"


def test_decisions_and_reports_answer_on_an_empty_fleet(
    plimsoll: Callable[..., Result], control_plane: ControlPlane
) -> None:
    assert f"API v1 at {control_plane.url}" in plimsoll("version").out
    assert plimsoll("pause").code == 0
    assert plimsoll("get", "policies").out.splitlines()[1].split()[3] == "yes"
    assert plimsoll("resume").code == 0
    assert plimsoll("explain").err.startswith("Error: no plan is in force yet")
    asked = plimsoll("what-if", "--suggest", "--time-limit", "5")
    assert asked.code == 0
    assert asked.out.splitlines()[1].split()[:4] == ["as", "it", "is", "$0.0000"]
    assert plimsoll("approve", "99").err == "Error: there is no plan 99\n"
    for report in ("cost", "cost --by project", "cost --by gpu-type", "slo"):
        assert plimsoll(*report.split()).code == 0


def test_policies_are_compared_switched_in_groups_and_switched_back(
    plimsoll: Callable[..., Result], file: Path
) -> None:
    file.write_text(MANIFESTS + "  scaling: {min_replicas: 1}\n")
    assert plimsoll("apply", "-f", file, "-y").code == 0
    compared = plimsoll("policy", "compare", "joint", "k8s_hpa")
    assert (compared.code, compared.err) == (0, "")
    assert [line.split()[0] for line in compared.out.splitlines()[1:3]] == [
        "joint",
        "k8s_hpa",
    ]

    groups = "groups: [{name: web, policy: hetsev, projects: [default]}]"
    policy = (
        f"{{apiVersion: "
        f"plimsoll/v1, kind: Policy, metadata: {{name: default}}, spec: {{policy: joint, {groups}}}}}"
    )
    assert plimsoll("apply", "-f", "-", "-y", stdin=policy).code == 0
    switched = plimsoll(
        "policy", "switch", "k8s_hpa", "--group", "web", "-y", "--approve"
    )
    assert (switched.code, switched.err) == (0, "")
    assert switched.out.splitlines()[0] == "group web: hetsev → k8s_hpa"
    assert "  web: k8s_hpa decided" in switched.out
    spec = json.loads(plimsoll("get", "policy", "default", "-o", "json").out)["spec"]
    assert (spec["groups"][0]["policy"], spec["approve_switch"]) == ("k8s_hpa", True)
    assert "web: k8s_hpa" in plimsoll("get", "policies", "-o", "wide").out
    assert "k8s_hpa" in plimsoll("describe", "policy", "default").out

    back = plimsoll("policy", "switch", "--back", "-y")
    assert back.out.splitlines()[0] == "group web: k8s_hpa → hetsev"
    spec = json.loads(plimsoll("get", "policy", "default", "-o", "json").out)["spec"]
    assert (spec["groups"][0]["policy"], spec["approve_switch"]) == ("hetsev", True)


def test_the_schema_is_upgraded_checked_and_shown(
    empty_database: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PLIMSOLL_DATABASE_URL", empty_database)
    assert run(["db", "check"]) == 1
    assert "run `plimsoll db upgrade`" in capfd.readouterr().err
    assert [
        run(["db", command]) for command in ("upgrade", "check", "current", "upgrade")
    ] == [0, 0, 0, 0]
    assert "already" in capfd.readouterr().out.splitlines()[-1]
    assert run(["db", "catalogue"]) == 0
    assert "gained 0 GPU types" not in capfd.readouterr().out
    # What an operator changed stays.
    execute(empty_database, "UPDATE gpu_type SET power_cap_w = 61 WHERE name = 'T4'")
    assert run(["db", "catalogue"]) == 0
    assert "gained 0 GPU types and 0 networks" in capfd.readouterr().out
    kept = "SELECT power_cap_w FROM gpu_type WHERE name = 'T4'"
    assert rows(empty_database, kept) == [(61.0,)]


def test_the_first_token_comes_straight_from_the_database(
    database: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLIMSOLL_DATABASE_URL", database)
    assert run(["token", "create", "first", "--local", "--scope", "admin"]) == 0
    assert capfd.readouterr().out.startswith("plim_admin_")


@pytest.mark.thorough  # test_apply has the same of a fake API
def test_an_impossible_slo_is_refused_at_its_line_with_the_least(
    plimsoll: Callable[..., Result], file: Path
) -> None:
    file.write_text(MANIFESTS.replace("latency_ms: 100", "latency_ms: 2"))
    refused = plimsoll("apply", "-f", file, "-y")
    assert refused.code == 1
    why = "2 ms at percentile 0.98 is impossible on T4; the shortest possible SLO is"
    assert f"{file}:31: spec.slo: {why}" in refused.err
    assert "`plimsoll apply --force` accepts it anyway" in refused.err
    # All or nothing: what comes before the refused one is not written either.
    assert plimsoll("get", "gpu-types").err == "No gpu-types.\n"
    dry = plimsoll("apply", "-f", file, "--dry-run")
    assert (dry.code, dry.err) == (refused.code, refused.err)
    forced = plimsoll("apply", "-f", file, "--dry-run", "--force")
    assert (forced.code, plimsoll("get", "services").err) == (0, "No services.\n")
    assert plimsoll("apply", "-f", file, "-y", "--force").code == 0


def test_a_webhook_is_applied_shown_and_deleted_and_its_secret_printed_once(
    plimsoll: Callable[..., Result],
) -> None:
    manifest = """
apiVersion: plimsoll/v1
kind: Webhook
metadata: {name: chat}
spec: {url: "https://hooks.example.com/", kinds: [BudgetSpent]}
"""
    created = plimsoll("apply", "-y", "-f", "-", stdin=manifest)
    assert "whsec_" in created.out
    again = plimsoll("apply", "-y", "-f", "-", stdin=manifest)
    other = manifest.replace("BudgetSpent", "PlanPushed")
    changed = plimsoll("apply", "-y", "-f", "-", stdin=other)
    listed = plimsoll("get", "webhooks")
    seen = [again, changed, listed, plimsoll("describe", "webhook", "chat")]
    assert [result.code for result in seen] == [0, 0, 0, 0]
    assert "whsec_" not in "".join(result.out for result in seen)
    assert "PlanPushed" in listed.out
    assert plimsoll("delete", "webhook", "chat", "-y").code == 0
