"""A real PgBouncer before a database of the tests."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from app.postgres.files import PORT
from tests.ports import a_free_port
from tests.waiting import PATIENCE_S, until

BOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pooled(url: str, folder: Path, mode: str, **settings: str | int) -> Iterator[str]:
    """The URL of the same database through a pooler in that mode. Skips the test where there is no PgBouncer."""
    if BOUNCER is None:
        pytest.skip("there is no pgbouncer here")
    port = a_free_port()
    socket_dir = str(make_url(url).query["host"])
    stated = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": mode,
        "ignore_startup_parameters": "options",
        **settings,
    }
    lines = [f"{name} = {value}" for name, value in stated.items()]
    database = f"* = host={socket_dir} port={PORT} user={make_url(url).username}"
    file = folder / "pgbouncer.ini"
    file.write_text("\n".join(("[databases]", database, "[pgbouncer]", *lines, "")))
    with (folder / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen(_command(file, socket_dir), stdout=log, stderr=log)
    try:
        until(lambda: b"process up" in (folder / "pgbouncer.log").read_bytes())
        yield (
            make_url(url)
            .set(host="127.0.0.1", port=port, query={})
            .render_as_string(hide_password=False)
        )
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _command(file: Path, socket_dir: str) -> list[str]:
    """It refuses to be root, but may enter root's folders, where the socket and its settings are."""
    assert BOUNCER is not None
    if os.geteuid() != 0:
        return [BOUNCER, str(file)]
    uid = Path(socket_dir).stat().st_uid or 65534
    caps = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    user = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    return ["setpriv", *user, *caps, BOUNCER, str(file)]
