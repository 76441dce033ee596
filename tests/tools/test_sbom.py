"""The signed list of what is installed: valid CycloneDX, complete, and no longer verified after a change."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.tools.small_index import make_small_index
from tools.sbom import sign, write_sbom

EC = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
RSA = ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048")


def openssl(*words: object) -> bool:
    """Whether a call of OpenSSL succeeds."""
    command = ["openssl", *map(str, words)]
    return not subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.thorough
def test_the_list_is_valid_and_names_what_the_lock_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = make_small_index(tmp_path)
    for name in ("UV_NO_INDEX", "UV_FIND_LINKS", "UV_CACHE_DIR"):
        monkeypatch.setenv(name, index.environment[name])
    target = tmp_path / "list.cdx.json"
    write_sbom(index.project, target, lock=index.lock)
    text = target.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    assert found["metadata"]["component"]["name"] == "needs-pebble"
    assert [each["purl"] for each in found["components"]] == [
        "pkg:pypi/pebble-stone@1.0"
    ]
    needs = {each["ref"]: each.get("dependsOn") for each in found["dependencies"]}
    assert needs["root-component"] == ["pebble-stone==1.0"]
    # Made again it is the same, so that anybody can make it from the lock and compare.
    write_sbom(index.project, target, lock=index.lock)
    assert target.read_text() == text
    index.tamper()
    with pytest.raises(subprocess.CalledProcessError):
        write_sbom(index.project, target, lock=index.lock)


@pytest.mark.parametrize("kind", [EC, RSA], ids=["EC", "RSA"])
def test_a_changed_list_is_not_verified(tmp_path: Path, kind: tuple[str, ...]) -> None:
    key, public = tmp_path / "release.key", tmp_path / "release.pub"
    assert openssl("genpkey", *kind, "-out", key)
    assert openssl("pkey", "-in", key, "-pubout", "-out", public)
    path = tmp_path / "list.cdx.json"
    path.write_text('{"components": []}')
    signature = sign(path, key)
    verify = ("dgst", "-sha256", "-verify", public, "-signature", signature, path)
    assert openssl(*verify)
    path.write_text('{"components": [{}]}')
    assert not openssl(*verify)


def test_without_a_key_it_says_how_to_make_one() -> None:
    command = [sys.executable, "-m", "tools.sbom"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "openssl genpkey" in answer.stderr and "SBOM_KEY=" in answer.stderr


@pytest.mark.thorough
def test_the_lists_of_this_release_are_made_signed_and_verified(tmp_path: Path) -> None:
    key, public, out = tmp_path / "release.key", tmp_path / "release.pub", tmp_path
    assert openssl("genpkey", *EC, "-out", key)
    assert openssl("pkey", "-in", key, "-pubout", "-out", public)
    command = [sys.executable, "-m", "tools.sbom", "--key", key, "--out", out]
    subprocess.run(command, check=True)
    for name, part in (("plimsoll-agent", "aiohttp"), ("plimsoll", "sqlalchemy")):
        path, signature = out / f"{name}.cdx.json", out / f"{name}.cdx.json.sig"
        verify = ("-verify", public, "-signature", signature, path)
        assert openssl("dgst", "-sha256", *verify)
        found = json.loads(path.read_text())
        assert part in {each["name"].lower() for each in found["components"]}
