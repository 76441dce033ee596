"""The testbed of docker-compose.yml as processes of this machine, for where no container runs.

Services run by their own commands, in the order that `depends_on` asks for. What a container gives them is put in its
place: each path that is mounted or part of an image by one of here, each name of a service by 127.0.0.1 and a port of
this run, the image's entry point by the file that it is.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.ports import a_free_port, own_environment
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
FAKE_NODE = ROOT / "tests" / "agents" / "fakes" / "fake_node.py"
ADDRESS = re.compile(r"(http://)?(agent-[a-z0-9]+|control-plane):\d+")


@dataclass(kw_only=True)
class Composed:
    """Services by their names in the file, as far as they were started."""

    folder: Path
    database: str
    """URL of an empty database, in the place of `postgres`."""
    library: Path
    """Where the fake driver was compiled into."""
    services: dict[str, Any] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    processes: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())[
            "services"
        ]
        self.ports = {name: a_free_port() for name in self.services}
        for name in ("admin", "agent", "database"):
            (self.folder / f"run/plimsoll-{name}").mkdir(parents=True)

    def start(self, name: str) -> None:
        """A service that goes on."""
        self.processes[name] = self._popen(name)

    def end(self, name: str) -> None:
        """One service, as `docker compose stop` does."""
        self.processes[name].send_signal(signal.SIGTERM)
        self._wait(name)
        del self.processes[name]

    def run(self, name: str) -> None:
        """A service that ends."""
        code = self._popen(name).wait(PATIENCE_S)
        assert code == 0, (name, self.log(name))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def admin_token(self) -> str:
        """As `migrate` made it."""
        return (self.folder / "run/plimsoll-admin/token").read_text().strip()

    def fake_node(self, *words: str) -> str:
        """`docker compose exec agent-h100 fake_node.py ...`: in the image's working directory."""
        return subprocess.run(
            [sys.executable, str(FAKE_NODE), *words],
            cwd=self.state_of("agent-h100"),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        ).stdout

    def address(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def state_of(self, name: str) -> Path:
        """The volume at /var/lib/plimsoll: short, since sockets lie in it."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def stop(self) -> None:
        """As `docker compose down` does: what needs the control plane first, and all of that at once."""
        for names in (
            self.processes.keys() - {"control-plane"},
            self.processes.keys() & {"control-plane"},
        ):
            for name in names:
                self.processes[name].send_signal(signal.SIGTERM)
            for name in sorted(names):
                self._wait(name)
        self.processes.clear()

    def _wait(self, name: str) -> None:
        """Until it has ended; killed where it takes twice the time that it would have in a container."""
        grace_s = float(
            str(self.services[name].get("stop_grace_period", "10s")).removesuffix("s")
        )
        try:
            self.processes[name].wait(2.0 * grace_s)
        except subprocess.TimeoutExpired:
            self.processes[name].kill()
            self.processes[name].wait()
            raise

    def here(self, name: str, word: str) -> str:
        """A word of a service's command, as it must be on this machine."""
        word = ADDRESS.sub(
            lambda found: f"{found[1] or ''}127.0.0.1:{self.ports[found[2]]}", word
        )
        word = word.replace("/var/lib/plimsoll", str(self.state_of(name)))
        word = word.replace("/testbed/", f"{ROOT}/deploy/testbed/").replace(
            "/run/", f"{self.folder}/run/"
        )
        word = word.replace("/opt/fake-driver", str(self.library))
        return re.sub(
            r"^(--router-port=|)(8000|8080)$", rf"\g<1>{self.ports[name]}", word
        )

    def _popen(self, name: str) -> "subprocess.Popen[bytes]":
        words = [self.here(name, str(word)) for word in self.services[name]["command"]]
        if words[0] == "run":
            words = [sys.executable, str(FAKE_NODE), *words]
        elif words[0].endswith(".sh"):
            # Scripts of the testbed know the container's paths alone.
            script = self.folder / f"{name}.sh"
            script.write_text(self.here(name, Path(words[0]).read_text()))
            words = ["/bin/sh", str(script)]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                words,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.state_of(name),
                env=self._environment(name),
            )

    def _environment(self, name: str) -> Mapping[str, str]:
        given = {
            key: self.here(name, value)
            for key, value in self.services[name].get("environment", {}).items()
        }
        if "PLIMSOLL_DATABASE_URL" in given:
            given["PLIMSOLL_DATABASE_URL"] = self.database
        if "PYTHONPATH" in given:
            given["PYTHONPATH"] = str(ROOT)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**own_environment(), "HOME": str(self.folder), "PATH": path, **given}


def is_healthy(bed: Composed, name: str) -> bool:
    """What the service's health check asks, asked from here."""
    process = bed.processes.get(name)
    assert process is None or process.poll() is None, (name, bed.log(name))
    program, flag, code = bed.services[name]["healthcheck"]["test"][1:]
    assert (program, flag) == ("python", "-c")
    code = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{bed.ports[name]}", code)
    return (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S
        ).returncode
        == 0
    )


def until_healthy(bed: Composed, name: str) -> None:
    until(lambda: is_healthy(bed, name))
