"""The shipped KEDA object, with a real Prometheus: no silence makes it scale a loaded service to zero."""

import json
import os
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.api_harness import Api, Prepared, service
from tests.integration.test_api_metrics import pass_time, push, scraped_text
from tests.ports import a_free_port
from tests.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.thorough,
    pytest.mark.skipif(
        shutil.which("prometheus") is None and not os.environ.get("CI"),
        reason="Prometheus is not here",
    ),
]

SHIPPED = (
    Path(__file__).parents[2] / "deploy/kubernetes/components/keda/scaled-object.yaml"
)
SCALED: dict[str, Any] = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))["spec"]
TRIGGER: dict[str, str] = SCALED["triggers"][0]["metadata"]


@dataclass(slots=True)
class Scraper:
    """A real Prometheus, and the page that it finds; None: nothing answers it."""

    url: str
    page: str | None = None
    scraped: int = 0

    def look(self, page: str | None) -> float | None:
        """What the shipped query says once that page was scraped; None: it finds nothing."""
        self.page = page
        # The one that is under way may still have got the page before.
        enough = self.scraped + 3
        until(lambda: self.scraped >= enough, "nothing was scraped")
        # The small fleet has T4 alone.
        return self._ask(TRIGGER["query"].replace("L4", "T4"))

    def _ask(self, query: str) -> float | None:
        asked = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{asked}") as answer:
            found = json.load(answer)["data"]["result"]
        return float(found[0]["value"][1]) if found else None


@contextmanager
def prometheus(folder: Path) -> Iterator[Scraper]:
    port = a_free_port()
    found = Scraper(url=f"http://127.0.0.1:{port}")

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.scraped += 1
            page = found.page
            self.send_response(503 if page is None else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *_: object) -> None:
            """Not into the test's output."""

    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    target = f"127.0.0.1:{server.server_port}"
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": "p", "static_configs": [{"targets": [target]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command)
    try:
        until(lambda: found.scraped > 0, "Prometheus did not start")
        yield found
    finally:
        process.terminate()
        process.wait()
        server.shutdown()
        server.server_close()


def replicas_after(current: int, figure: float | None) -> int:
    """What KEDA makes of a figure (its executor and its fallback), once it has come again and again."""
    if figure is None and TRIGGER["ignoreNullValues"] == "true":
        figure = 0.0
    if figure is not None:
        return max(
            SCALED["minReplicaCount"], min(SCALED["maxReplicaCount"], round(figure))
        )
    # An error: with a fallback above 0 the scale to zero is left out.
    fallback = SCALED["fallback"]
    assert fallback["behavior"] == "currentReplicasIfHigher"
    assert fallback["replicas"] > 0
    return max(current, fallback["replicas"])


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        own = service(mode="advise", scaling={"min_replicas": 0})
        running.put("services/chat", own)
        yield running


def test_no_silence_ends_a_loaded_deployment(api: Api, tmp_path: Path) -> None:
    with prometheus(tmp_path) as scraper:
        # Three replicas run already, of which nothing was heard yet.
        pass_time(api, seconds=1.0, sequence=1)
        assert replicas_after(3, scraper.look(scraped_text(api))) == 3

        for _ in range(5):
            api.clock.advance(10.0)
            push(api, rate_rps=200.0)
        pass_time(api, seconds=1.0, sequence=2)
        loaded = replicas_after(3, scraper.look(scraped_text(api)))
        assert loaded > 0

        # Telemetry stops for ten minutes.
        for minute in range(10):
            pass_time(api, seconds=60.0, sequence=3 + minute)
        assert replicas_after(loaded, scraper.look(scraped_text(api))) == loaded

        # Plimsoll itself is away.
        assert replicas_after(loaded, scraper.look(None)) == loaded
