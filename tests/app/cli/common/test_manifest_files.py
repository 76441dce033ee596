"""Manifests from files: every complaint has its file, line, field and remedy."""

from pathlib import Path

import pytest

from app.cli.common.errors import CliError
from app.cli.common.manifest_files import ManifestErrors, read_manifests

GOOD = """\
apiVersion: plimsoll/v1
kind: Service
metadata:
  name: chat
spec:
  network: bert
  slo: {latency_ms: 50, percentile: 0.98}
"""


def complaints(folder: Path, text: str) -> list[str]:
    """What reading the text says, without the folder's name."""
    file = folder / "x.yaml"
    file.write_text(text)
    with pytest.raises(ManifestErrors) as caught:
        read_manifests([file])
    return [str(entry).replace(f"{folder}/", "") for entry in caught.value.complaints]


def replaced(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (GOOD + "  model: bert\n", "x.yaml:8: spec.model: unknown field; did you mean"),
        (
            replaced("latency_ms: 50", "latency_ms: -3"),
            "x.yaml:7: spec.slo.latency_ms: must be greater than 0, not -3",
        ),
        (replaced("50,", ".nan,"), "x.yaml:7: spec.slo.latency_ms: must be a finite"),
        (replaced("  network: bert\n", ""), "x.yaml:5: spec.network: this field is"),
        (replaced("chat", "Chat"), "x.yaml:4: metadata.name: must be 1 to 63"),
        (replaced("kind: Service", "kind: Servce"), "x.yaml:2: kind: unknown kind"),
        (
            replaced("kind: Service", "kind: InferenceService"),
            "x.yaml:2: kind: unknown kind InferenceService; did you mean Service?",
        ),
        (
            replaced("kind: Service", "kind: PlimsollService"),
            "x.yaml:2: kind: PlimsollService is an object of a Kubernetes cluster: write it there by `kubectl apply`",
        ),
        (replaced("kind: Service\n", ""), "x.yaml:1: kind: this field is missing"),
        (replaced("/v1", "/v9"), "x.yaml:1: apiVersion: must be 'plimsoll/v1', not"),
        (replaced("apiVersion: plimsoll/v1\n", ""), "x.yaml:1: apiVersion: this field"),
        (GOOD + "  priority: urgent\n", "x.yaml:8: spec.priority: must be a number or"),
        (
            replaced("slo: {latency_ms: 50, percentile: 0.98}", "slo: 50"),
            "x.yaml:7: spec.slo: must be an object with fields of its own, not 50",
        ),
        (GOOD + "  scaling: {min_replicas: 1.5}\n", "x.yaml:8: spec.scaling.min_r"),
        (GOOD + "  mode: on\n", "x.yaml:8: spec.mode: must be 'off', 'advise'"),
        (
            GOOD + "  scaling: {minReplicas: 5, maxReplicas: 2}\n",
            "x.yaml:8: spec.scaling: min_replicas 5 is above max_replicas 2",
        ),
        (GOOD + "  network: other\n", "x.yaml:8: spec.network: is given twice, first"),
        (GOOD + " - what\n", "x.yaml:8: not YAML: "),
        ("- chat\n", "x.yaml:1: must be an object with apiVersion, kind, metadata and"),
        (GOOD + "---\n" + GOOD, "x.yaml:12: metadata.name: Service chat is in"),
        (GOOD + "  priority: 2026-13-40\n", "x.yaml:1: not YAML: month must be in"),
        ("[" * 1000, "x.yaml:1: not YAML that can be read: nested too deeply"),
    ],
)
def test_a_fault_is_named_with_line_field_and_remedy(
    tmp_path: Path, text: str, wanted: str
) -> None:
    found = complaints(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(wanted)


def test_all_faults_of_all_files_come_at_once_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(replaced("chat", "Chat") + "---\nkind: What\n")
    (tmp_path / "a.yml").write_text(replaced("network", "netwrk"))
    with pytest.raises(ManifestErrors) as caught:
        read_manifests([tmp_path])
    places = [(Path(entry.file).name, entry.line) for entry in caught.value.complaints]
    assert places == [("a.yml", 5), ("a.yml", 6), ("b.yaml", 4), ("b.yaml", 9)]


def test_objects_come_in_the_order_in_which_they_refer_to_each_other(
    tmp_path: Path,
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        GOOD + "---\napiVersion: plimsoll/v1\nkind: Network\nmetadata: {name: bert}\n"
    )
    assert [entry.kind for entry in read_manifests([file])] == ["Network", "Service"]


def test_aliases_are_followed_even_to_themselves(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(replaced("chat", "&n chat") + "  gpu_types: {allowed: [*n]}\n")
    (entry,) = read_manifests([file])
    assert entry.manifest.model_dump()["spec"]["gpu_types"]["allowed"] == ["chat"]
    assert complaints(tmp_path, GOOD + "  gpu_types: &g {allowed: [*g]}\n")[
        0
    ].startswith("x.yaml:8: spec.gpu_types")


def test_what_cannot_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n---\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "folder").mkdir()
    for name, words in (
        ("nothing.yaml", "cannot read .*nothing.yaml: No such file"),
        ("empty.yaml", "there is no manifest in .*empty.yaml"),
        ("binary.yaml", "binary.yaml is not UTF-8 text"),
        ("folder", "folder .*folder has no file that ends with .yaml"),
    ):
        with pytest.raises(CliError, match=words):
            read_manifests([tmp_path / name])
