"""Known vulnerabilities fail `make check` unless they are accepted until a day; no service, no failure."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from tests.tools.small_index import PROJECT, make_small_index
from tests.waiting import PATIENCE_S

ADVISORY: dict[str, object] = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "aliases": ["CVE-2026-0001"],
    "summary": "A stone may fall.",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "pebble-stone"},
            "ranges": [
                {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}
            ],
            "versions": ["1.0"],
        }
    ],
}
ACCEPTED = """
[[tool.plimsoll.accepted-vulnerabilities]]
id = "CVE-2026-0001"
reason = "no stones are thrown here"
until = {until}
"""


class Advisories(BaseHTTPRequestHandler):
    """The one question of the OSV protocol that pip-audit asks."""

    advisory: ClassVar[dict[str, object]] = ADVISORY

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"vulns": [self.advisory]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: a test prints what it finds."""


@contextmanager
def serving(handler: type[Advisories]) -> Iterator[str]:
    """The URL of a service that answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        thread.join()


class Broken(Advisories):
    """Not one of the protocol: pip-audit ends by a fault of its own."""

    advisory = ADVISORY | {"affected": 5}


class OneAnswer(Advisories):
    """Gone after the first question."""

    has_answered: ClassVar[bool] = False

    def do_POST(self) -> None:
        if OneAnswer.has_answered:
            self.close_connection = True
            return
        OneAnswer.has_answered = True
        super().do_POST()


def audit(folder: Path, url: str, accepted: str = "") -> tuple[int, str]:
    """Exit code and output."""
    index = make_small_index(folder)
    index.project.write_text(PROJECT + accepted)
    command = [sys.executable, "-m", "tools.audit", "--lock", str(index.lock)]
    command += ["--project", str(index.project), "--timeout", "5"]
    command += ["--vulnerability-service", "osv", "--osv-url", url]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return answer.returncode, answer.stdout


def test_a_known_vulnerability_fails_and_says_where_it_is_fixed(
    tmp_path: Path, service: str
) -> None:
    code, output = audit(tmp_path, service)
    assert code == 1
    assert output.splitlines()[0] == (
        "pebble-stone 1.0: CVE-2026-0001, GHSA-aaaa-bbbb-cccc (fixed in 1.1)"
    )


@pytest.fixture
def service() -> Iterator[str]:
    with serving(Advisories) as url:
        yield url


@pytest.mark.thorough
@pytest.mark.parametrize(("until", "code"), [("9999-01-01", 0), ("2026-01-01", 1)])
def test_a_vulnerability_is_accepted_until_a_day(
    tmp_path: Path, service: str, until: str, code: int
) -> None:
    assert audit(tmp_path, service, ACCEPTED.format(until=until))[0] == code


@pytest.mark.thorough
def test_without_an_advisory_service_the_audit_is_skipped(tmp_path: Path) -> None:
    # Port 9 discards; nothing listens there.
    answer = audit(tmp_path, "http://127.0.0.1:9/v1/query")
    assert answer == (0, "audit skipped: no advisory index answers\n")


@pytest.mark.thorough
@pytest.mark.parametrize("handler", [Broken, OneAnswer])
def test_a_fault_of_the_audit_is_not_taken_for_no_service(
    tmp_path: Path, handler: type[Advisories]
) -> None:
    with serving(handler) as url:
        assert audit(tmp_path, url) == (1, "")


def test_make_check_asks_for_known_vulnerabilities() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    (check,) = re.findall(r"(?m)^check:.*\n((?:\t.*\n)+)", makefile)
    assert "python -m tools.audit" in check
