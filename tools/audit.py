"""Known vulnerabilities of the versions that are pinned; part of `make check`.

    python -m tools.audit [pip-audit's options, such as --vulnerability-service osv]

pip-audit asks an advisory service, by default that of the package index. The exit code is 1 where a pinned version has
a known vulnerability that pyproject.toml does not accept:

    [[tool.plimsoll.accepted-vulnerabilities]]
    id = "CVE-2026-0001"
    reason = "why it does no harm here"
    until = 2026-12-31          # when somebody judges it again: from the day after on it fails

Where no service answers (offline, or behind a mirror that has packages alone) it says so and exits with 0. Where one
answers at first and then no more, or too slowly, nothing is known of the other pins, and the audit fails.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
# 170 questions take some 10 s; a slow line must not mean a wait for minutes in `make check`.
_LIMIT_S = 120.0
# How pip-audit ends when it reaches no service; anything else that ends it is a fault that must be seen.
_UNREACHABLE = re.compile(r"Could not connect|requests\.exceptions\.|ServiceError")


class AuditFailed(Exception):
    """pip-audit itself failed, with its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vulnerability:
    """One advisory of one pinned version."""

    package: str
    version: str
    # The advisory's own name, and those that other databases give it.
    ids: tuple[str, ...]
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        remedy = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "no fix"
        return f"{self.package} {self.version}: {', '.join(self.ids)} ({remedy})"


def find_vulnerabilities(
    lock: Path, options: list[str]
) -> tuple[Vulnerability, ...] | None:
    """What the advisory service knows of a lock's pins; None: no service answers. Raises AuditFailed."""
    with tempfile.TemporaryDirectory(prefix="audit") as name:
        # One pin first: a mirror without advisories is then known after one question instead of 170.
        first = Path(name) / "first.txt"
        lines = lock.read_text().splitlines(keepends=True)
        end = next(n for n, line in enumerate(lines) if not line.endswith("\\\n"))
        first.write_text("".join(lines[: end + 1]))
        if _ask(first, options) is None:
            return None
    found = _ask(lock, options)
    if found is None:
        raise AuditFailed(
            f"the advisory index answered the first question, and not all of {lock} within {_LIMIT_S:.0f} s: nothing "
            "is known of its other pins"
        )
    return found


def _ask(lock: Path, options: list[str]) -> tuple[Vulnerability, ...] | None:
    command = [sys.executable, "-m", "pip_audit", "--format", "json"]
    command += ["--progress-spinner", "off", "--require-hashes", "--disable-pip"]
    command += ["--aliases", "on", "--requirement", str(lock), *options]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    # It exits with 1 for a vulnerability, which it prints, and for whatever else went wrong, which it does not.
    if not answer.stdout:
        if _UNREACHABLE.search(answer.stderr):
            return None
        raise AuditFailed(answer.stderr.strip())
    dependencies = json.loads(answer.stdout)["dependencies"]
    answered = [each for each in dependencies if "vulns" in each]
    if not answered:
        return None
    return tuple(
        Vulnerability(
            package=each["name"],
            version=each["version"],
            ids=(found["id"], *found["aliases"]),
            fixed_in=tuple(found["fix_versions"]),
        )
        for each in answered
        for found in each["vulns"]
    )


def load_accepted(project: Path, today: date) -> frozenset[str]:
    """Advisories that pyproject.toml accepts, without those whose date is past. Raises KeyError for a missing field."""
    tool = tomllib.loads(project.read_text()).get("tool", {})
    entries = tool.get("plimsoll", {}).get("accepted-vulnerabilities", [])
    # Each needs its reason, so that the one who finds it expired can judge it again.
    return frozenset(
        each["id"] for each in entries if each["reason"] and each["until"] >= today
    )


def main() -> int:
    """Ask, compare with what is accepted, print."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.audit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--lock", type=Path, default=_ROOT / "constraints.txt")
    parser.add_argument("--project", type=Path, default=_ROOT / "pyproject.toml")
    arguments, options = parser.parse_known_args()
    accepted = load_accepted(arguments.project, datetime.now(UTC).date())
    found = find_vulnerabilities(arguments.lock, options)
    if found is None:
        sys.stdout.write("audit skipped: no advisory index answers\n")
        return 0
    left = [each for each in found if accepted.isdisjoint(each.ids)]
    sys.stdout.writelines(f"{each}\n" for each in left)
    sys.stdout.write(f"audit: {len(left)} known vulnerabilities\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
