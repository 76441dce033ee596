"""A client that openapi-python-client makes of the checked-in document, against a real API on a socket."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.api.application import PREFIX
from tests.integration.api_harness import gpu_type, network, node, profile
from tests.integration.served_api import ControlPlane, served_api
from tools.documents.openapi import PATH

# The document itself is held against every answer by test_schemathesis.
pytestmark = [pytest.mark.integration, pytest.mark.thorough]

PACKAGE = "generated_plimsoll"
DOCUMENT = json.loads(PATH.read_text(encoding="utf-8"))
TAGS: dict[str, str] = {
    operation["operationId"]: operation["tags"][0].replace("-", "_")
    for item in DOCUMENT["paths"].values()
    for operation in item.values()
}
"""The generator puts each operation into a package of its tag."""

LISTS = sorted(
    item["get"]["operationId"]
    for path, item in DOCUMENT["paths"].items()
    if "get" in item and path.startswith(PREFIX) and "{" not in path
)
"""What is read without naming an object."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the client, which can be imported; a warning of the generator is an error."""
    folder = tmp_path_factory.mktemp("generated")
    settings = folder / "settings.yaml"
    # Else it formats what it wrote, for which it seeks ruff on the PATH.
    settings.write_text("post_hooks: []\n", encoding="utf-8")
    made = subprocess.run(
        [
            *(sys.executable, "-m", "openapi_python_client", "generate"),
            *("--path", PATH, "--output-path", folder / PACKAGE),
            *("--config", settings, "--meta", "none", "--fail-on-warning"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "WARNING" not in (made.stdout + made.stderr).upper(), made.stdout
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder / PACKAGE
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def control_plane(database: str) -> Iterator[ControlPlane]:
    with served_api(database) as plane:
        yield plane


@pytest.fixture
def client(generated: Path, control_plane: ControlPlane) -> Iterator[Any]:
    """The generated client with an admin's token, which refuses answers that the document does not state."""
    made = import_module(f"{PACKAGE}.client").AuthenticatedClient(
        base_url=control_plane.url,
        token=control_plane.token,
        raise_on_unexpected_status=True,
        # The first plan may have to compile the kernels.
        timeout=300.0,
    )
    with made as opened:
        yield opened


def _operation(name: str) -> ModuleType:
    return import_module(f"{PACKAGE}.api.{TAGS[name]}.{name}")


def _model(name: str, document: dict[str, Any]) -> Any:
    """What the generated class of that name makes of a manifest."""
    return getattr(import_module(f"{PACKAGE}.models"), name).from_dict(document)


def test_every_operation_is_generated_and_can_be_called(generated: Path) -> None:
    found = {
        path.stem
        for path in (generated / "api").glob("*/*.py")
        if path.stem != "__init__"
    }
    assert found == set(TAGS)
    for name in TAGS:
        assert callable(_operation(name).sync_detailed)


def _make_fleet(client: Any) -> None:
    for name, model, key, manifest in (
        ("put_gpu_type", "GpuTypeManifest", "T4", gpu_type()),
        ("put_network", "Network", "resnet50", network()),
        ("put_node", "NodeManifest", "n1", node()),
    ):
        made = _operation(name).sync_detailed(
            key, client=client, body=_model(model, manifest)
        )
        assert made.status_code == 201, made.content
    # Its rows are tuples of nine numbers.
    rows = _operation("put_profile").sync_detailed(
        "resnet50", "T4", client=client, body=_model("ProfileManifest", profile())
    )
    assert rows.parsed.spec.rows[0][:3] == [50, 1, 1590]


def test_a_service_is_made_listed_planned_and_deleted(client: Any) -> None:
    models = import_module(f"{PACKAGE}.models")
    _make_fleet(client)
    project = _operation("put_project").sync(
        "team-a",
        client=client,
        body=models.Project(metadata=models.Metadata(name="team-a")),
    )
    assert project.metadata.name == "team-a"

    put = _operation("put_service").sync_detailed(
        "chat",
        client=client,
        if_none_match="*",
        body=models.ServiceManifest(
            metadata=models.Metadata(name="chat", project="team-a"),
            spec=models.ServiceSpec(
                network="resnet50", slo=models.SloSpec(latency_ms=100, percentile=0.98)
            ),
        ),
    )
    assert put.status_code == 201, put.content
    listed = _operation("list_services").sync(client=client, project="team-a")
    assert [each.metadata.name for each in listed.items] == ["chat"]
    got = _operation("get_service").sync_detailed("chat", client=client)
    assert got.parsed.spec == put.parsed.spec
    for name in LISTS:
        assert _operation(name).sync_detailed(client=client).status_code == 200

    planned = _operation("preview_plan").sync(
        client=client,
        body=models.PreviewRequest.from_dict({"demand_rps": {"chat": 20.0}}),
    )
    assert isinstance(planned, models.PreviewView)
    assert [demand.service for demand in planned.demands] == ["chat"]

    delete = _operation("delete_service").sync_detailed
    careless = delete("chat", client=client)
    assert careless.status_code == 428
    assert isinstance(careless.parsed, models.ProblemDetails)
    gone = delete("chat", client=client, if_match=got.headers["ETag"])
    assert gone.status_code == 204, gone.content
    assert _operation("list_services").sync(client=client).items == []


def test_an_error_is_a_problem(client: Any) -> None:
    missing = _operation("get_plan").sync_detailed(999, client=client)
    assert missing.status_code == 404
    assert "999" in missing.parsed.detail
