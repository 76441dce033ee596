"""constraints.txt: pins with hashes of everything, and installs that take nothing else."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tools.small_index import make_small_index
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
UNPINNED = {"torch"}
"""Chosen by its index, CPU or CUDA; see the extra `rl`."""


def pins() -> dict[str, str]:
    """Versions by package. Every line is a pin with at least one hash: no host, no path, no bare name."""
    text = (ROOT / "constraints.txt").read_text()
    entry = (
        r"([a-z0-9-]+)==([0-9][0-9a-z.]*)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
    )
    found = re.findall(entry, text)
    assert (
        "".join(f"{name}=={version}{rest}\n" for name, version, rest in found) == text
    )
    return {name: version for name, version, _ in found}


def test_every_line_of_the_lock_is_a_pin_with_hashes_each_once_in_order() -> None:
    found = list(pins())
    assert found == sorted(set(found))


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_every_declared_dependency_is_pinned_within_its_range(
    extra: str | None,
) -> None:
    pinned = pins()
    lines = PYPROJECT["project"]["dependencies"] if extra is None else EXTRAS[extra]
    for requirement in map(Requirement, lines):
        name = canonicalize_name(requirement.name)
        if name not in UNPINNED:
            assert name in pinned, f"{name} is missing in constraints.txt: make lock"
            assert requirement.specifier.contains(pinned[name]), (
                f"{requirement} against {pinned[name]}: make lock"
            )


def test_what_builds_and_what_installs_is_pinned_too() -> None:
    build = map(Requirement, PYPROJECT["build-system"]["requires"])
    assert {each.name for each in build} | {"uv", "editables"} <= pins().keys()


def test_make_lock_pins_all_extras_but_the_one_that_an_index_decides() -> None:
    listed = re.search(
        r"^LOCKED_EXTRAS := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert listed and set(listed[1].split(",")) == EXTRAS.keys() - {"rl"}


@pytest.mark.parametrize(
    "path", ["Makefile", "deploy/Dockerfile", "docs/install-agent.md"]
)
def test_every_install_verifies_hashes_or_takes_no_dependency(path: str) -> None:
    text = (ROOT / path).read_text().replace("\\\n", "")
    installs = re.findall(r"\b(?:pip3? install|uv build|pip wheel)\b .*", text)
    assert len(installs) >= 3
    for install in installs:
        if "--no-deps /wheels/" in install:
            continue
        builds = "--require-build-hashes --build-constraints constraints.txt"
        is_built = builds in install and ("--no-deps" in install or "build" in install)
        assert is_built or "--require-hashes" in install, install


def install(folder: Path, *, tampered: bool) -> subprocess.CompletedProcess[str]:
    """The Makefile's own installation of what a project depends on."""
    index = make_small_index(folder)
    if tampered:
        index.tamper()
    recipe = re.search(
        r"\$\(BIN\)/(uv pip install .*--require-hashes .*)\\\n(.*) \$\(call",
        (ROOT / "Makefile").read_text(),
    )
    assert recipe
    environment = folder / "environment"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True
    )
    words = f"{recipe[1]}{recipe[2]}".replace("$(BIN)", f"{environment}/bin").split()
    program = Path(sys.executable).parent / words[0]
    return subprocess.run(
        [str(program), *words[1:]],
        cwd=folder,
        env=index.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_package_that_is_not_the_locked_one_is_not_installed(tmp_path: Path) -> None:
    for name, tampered in (("locked", False), ("tampered", True)):
        folder = tmp_path / name
        folder.mkdir()
        answer = install(folder, tampered=tampered)
        installed = list(folder.glob("environment/lib/*/site-packages/pebble_stone*"))
        assert bool(installed) is not tampered, answer.stderr
        assert ("Hash mismatch" in answer.stderr) is tampered
