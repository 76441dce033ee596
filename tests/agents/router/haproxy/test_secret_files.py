"""The files in which the agent hands HAProxy its secrets."""

import os
from pathlib import Path

from agents.router.access import RouterAccess
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.process import HaProxy


def test_nobody_else_can_read_the_private_key_and_the_keys_of_services(
    tmp_path: Path,
) -> None:
    for name in ("chain", "key"):
        (tmp_path / name).write_text(name)
    access = RouterAccess(
        certificate=tmp_path / "chain",
        private_key=tmp_path / "key",
        keys={"chat": frozenset({"ab" * 32})},
    )
    settings = HaProxySettings(port=8000, folder=tmp_path / "front", access=access)
    settings.folder.mkdir()
    before = os.umask(0o022)
    try:
        # Twice: the second one replaces what the first has written.
        for _ in range(2):
            HaProxy(settings).write_config()
    finally:
        os.umask(before)
    assert "key" in settings.tls_path.read_text()
    for path in (settings.tls_path, settings.keys_path):
        assert path.stat().st_mode & 0o777 == 0o600
