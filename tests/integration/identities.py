"""A real identity provider as a process, and people who log in by its own forms."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from unittest.mock import patch
from urllib.parse import urljoin

import httpx2
import pytest

from app.web import identity_provider
from tests.waiting import PATIENCE_S

SERVER = Path(__file__).with_name("identity_server.py")
MAX_STEPS = 12


@contextmanager
def running_identities(public_url: str) -> Iterator[str]:
    """The issuer's address, for a control plane in this process, which waits for its answers as long as tests do.

    `public_url`: where that is; no one is sent elsewhere.
    """
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("there is no uv to install the identity provider with")
    command = (uv, "run", "--quiet", "--no-project", "--script")
    # Ours would be found before the provider's own modules.
    environment = {key: at for key, at in os.environ.items() if key != "PYTHONPATH"}
    with (
        TemporaryFile("w+") as said,
        TemporaryDirectory() as folder,
        patch.object(identity_provider, "ANSWERS_WITHIN_S", PATIENCE_S),
    ):
        process = subprocess.Popen(
            [*command, str(SERVER), public_url, folder],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=environment,
            # uv starts the server as a child: both are ended together.
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            if not port:
                said.seek(0)
                # On the machine that decides whether a change may land nothing is left out silently.
                (pytest.fail if os.environ.get("CI") else pytest.skip)(
                    f"the identity provider could not be installed: {said.read()[-500:]}"
                )
            yield f"http://localhost:{port}/"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=PATIENCE_S)
            process.stdout.close()


def come_back(login_url: str, name: str, public_url: str) -> str:
    """Log that person in at the provider as a browser does; the address to which it then sends them."""
    password = f"password of {name}"
    with httpx2.Client(follow_redirects=False, timeout=PATIENCE_S) as browser:
        answer = browser.get(login_url)
        for _ in range(MAX_STEPS):
            if answer.is_redirect:
                target = urljoin(str(answer.url), answer.headers["location"])
                if target.startswith(public_url):
                    return target
                answer = browser.get(target)
                continue
            form = _Form(answer.text)
            assert form.fields, answer.text
            typed = {"login": name, "password": password}
            filled = {
                field: typed.get(field, value) for field, value in form.fields.items()
            }
            answer = browser.post(urljoin(str(answer.url), form.action), data=filled)
    raise AssertionError(f"the provider asks on: {answer.url}")


class _Form(HTMLParser):
    """The first form of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.action = ""
        self.fields: dict[str, str] = {}
        self._is_within = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form" and not self.fields:
            self._is_within, self.action = True, given.get("action", "")
        if tag == "input" and self._is_within and given.get("name"):
            self.fields[given["name"]] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._is_within = False
