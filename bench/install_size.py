"""How much room the agent takes on a node: the distribution of deploy/agent, by package, in MB of 10^6 bytes.

    python -m bench.install_size

It is installed with what it needs, as `constraints.txt` pins it, into a fresh virtual environment outside this
checkout, without pip. Bytecode is not compiled and not counted. The exit code is 1 above the limit.
"""

import argparse
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

from bench.report import Figures, print_table, write_results

ROOT = Path(__file__).parents[1]
AGENT = ROOT / "deploy" / "agent"
LIMIT_MB = 25.0
LARGEST = 3
"""Packages that are named when it is too much."""


def installed(directory: Path) -> Path:
    """Where a fresh environment has its packages, with Plimsoll and what its agent needs."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True
    )
    python = directory / "bin" / "python"
    uv = [str(Path(sys.executable).parent / "uv"), "pip", "install", "--quiet"]
    uv += ["--python", str(python)]
    hashed = ["--require-hashes", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run(
        [*uv, *hashed, "--requirement", str(AGENT / "pyproject.toml")], check=True
    )
    subprocess.run([*uv, "--no-deps", str(AGENT)], check=True)
    subprocess.run(
        [str(directory / "bin" / "plimsoll-agent"), "--help"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return next((directory / "lib").glob("python*/site-packages"))


def sizes(packages: Path) -> list[Figures]:
    """One row for each installed package, the largest first."""
    rows: list[Figures] = [
        {
            "package": each.metadata["Name"],
            "version": each.version,
            "mb": _bytes(each) / 1e6,
        }
        for each in distributions(path=[str(packages)])
    ]
    return sorted(rows, key=lambda row: float(row["mb"] or 0.0), reverse=True)


def _bytes(package: Distribution) -> int:
    paths = [Path(str(package.locate_file(each))) for each in package.files or ()]
    return sum(
        path.stat().st_size for path in paths if path.exists() and path.suffix != ".pyc"
    )


def main() -> int:
    """Install, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.install_size",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="size") as name:
        rows = sizes(installed(Path(name)))
    total_mb = sum(float(row["mb"] or 0.0) for row in rows)
    print_table(rows)
    print(f"\n{total_mb:.1f} MB of at most {LIMIT_MB:g}")
    if total_mb > LIMIT_MB:
        print(
            "to cut first: "
            + ", ".join(
                f"{row['package']} ({row['mb']:.1f} MB)" for row in rows[:LARGEST]
            )
        )
    if not options.dry:
        write_results(
            "install_size", rows, settings={"total_mb": total_mb, "limit_mb": LIMIT_MB}
        )
    return 1 if total_mb > LIMIT_MB else 0


if __name__ == "__main__":
    sys.exit(main())
