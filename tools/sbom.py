"""Signed lists of what a release is made of (CycloneDX): one of the node's agent, one of the control plane.

    make sbom SBOM_KEY=release.key        writes dist/plimsoll-agent.cdx.json, dist/plimsoll.cdx.json, and .sig of each

A list is that of a fresh environment into which constraints.txt was installed, every hash checked: components with
versions, licences and what needs what. cyclonedx-py makes it and checks it against the schema. The signature is one of
OpenSSL (SHA-256, by an EC or RSA key), so that it is verified without anything of Plimsoll:

    openssl dgst -sha256 -verify release.pub -signature plimsoll.cdx.json.sig plimsoll.cdx.json
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_WITHOUT_KEY = """the lists are signed: name a private key

    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out release.key     # once; keep it
    openssl pkey -in release.key -pubout -out release.pub                              # publish it
    make sbom SBOM_KEY=release.key
"""


def write_sbom(
    project: Path, target: Path, *, lock: Path, extras: tuple[str, ...] = ()
) -> None:
    """Write the CycloneDX list of a project's locked dependencies. Raises CalledProcessError, also for a wrong hash."""
    with tempfile.TemporaryDirectory(prefix="sbom") as name:
        python = Path(name) / "bin" / "python"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", name], check=True
        )
        install = ["uv", "pip", "install", "--quiet", "--python", str(python)]
        install += ["--require-hashes", "--constraint", str(lock)]
        install += ["--requirement", str(project)]
        for extra in extras:
            install += ["--extra", extra]
        _run(install)
        # Reproducible: without a date and a random number, so that one lock gives one list, byte by byte.
        describe = ["cyclonedx-py", "environment", "--output-reproducible"]
        describe += ["--validate", "--pyproject", str(project)]
        _run([*describe, "--output-file", str(target), str(python)])


def sign(path: Path, key: Path) -> Path:
    """Write a signature next to a file, and return where. Raises CalledProcessError where the key signs nothing."""
    signature = path.with_name(f"{path.name}.sig")
    command = ["openssl", "dgst", "-sha256", "-sign", str(key)]
    subprocess.run([*command, "-out", str(signature), str(path)], check=True)
    return signature


def _run(command: list[str]) -> None:
    program = Path(sys.executable).parent / command[0]
    subprocess.run([str(program), *command[1:]], check=True)


def main() -> int:
    """Write and sign both lists."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.sbom",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--key", default="", help="private key, a PEM file")
    parser.add_argument("--out", type=Path, default=_ROOT / "dist")
    options = parser.parse_args()
    # Before the minute of work that would be lost.
    if not options.key or not Path(options.key).is_file():
        sys.stderr.write(_WITHOUT_KEY)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    sets = {
        "plimsoll-agent": (_ROOT / "deploy" / "agent" / "pyproject.toml", ()),
        "plimsoll": (_ROOT / "pyproject.toml", ("server",)),
    }
    for name, (project, extras) in sets.items():
        target = options.out / f"{name}.cdx.json"
        write_sbom(project, target, lock=_ROOT / "constraints.txt", extras=extras)
        sys.stdout.write(f"{target} {sign(target, Path(options.key))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
