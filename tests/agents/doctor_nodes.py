"""Nodes for the doctor's tests: fake driver, MPS, nvidia-smi, control plane and kernel files; the rest is real.

with doctor_node(library) as node:       # a healthy one, in a directory of fixed length
    node.fake.state.may_write = 0        # ... and then something is broken
    node.examine() / node.shown()
"""

import os
import pwd
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import patch

import msgspec

from agents.doctor import driver
from agents.doctor.doctor import examine, render
from agents.doctor.driver import answer_of
from agents.doctor.types import Asked, Here, NodeFinding
from agents.gpu.knobs.journal import KnobJournal, KnobTurn
from agents.processes.procfs import boot_id
from agents.processes.records import Identity, Record, Records
from tests.agents.factories import a_record
from tests.agents.fakes.nvml.fake_gpus import (
    NO_GPM,
    STATE_VARIABLE,
    FakeGpus,
    end_sessions,
    use_here,
)
from tests.agents.gpu_nodes import OWN_USER
from tests.ports import own_environment
from tests.waiting import PATIENCE_S

FAKES = Path(__file__).parents[0] / "fakes"
UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
NODE_DIRECTORY = Path("/node/of-doctor")
"""Stands in golden texts for the directory of a test, whose name is as long."""
TOKEN = "plim_right"
BOOT = "0f9a3c52-1111-4222-8333-444455556666"
SYS_ADMIN = f"{1 << 21:016x}"
NONE = f"{0:016x}"
TEMPLATES = """\
default = "resnet"

[templates.resnet]
command = ["sh", "serve.sh", "{port}"]
"""


class PaperControlPlane(ThreadingHTTPServer):
    """Answers as the control plane's API does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.body = 200, b'{"status":"ok","checks":{"database":"ok"}}'
        self.ahead_s = 0.0
        """How far its clock is ahead of this machine's."""
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: PaperControlPlane

    def do_GET(self) -> None:
        self._answer(self.server.status, self.server.body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        is_known = self.headers["Authorization"] == f"Bearer {TOKEN}"
        self._answer(422 if is_known else 401, b'{"detail":"field required"}')

    def _answer(self, status: int, body: bytes) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        self.send_response_only(status)
        date = datetime.now(UTC) + timedelta(seconds=self.server.ahead_s)
        self.send_header("Date", format_datetime(date, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@dataclass
class DoctorNode:
    """One node; change it, then examine it."""

    root: Path
    fake: FakeGpus
    plane: PaperControlPlane
    asked: Asked
    here: Here
    shown_as: dict[str, str] = field(default_factory=dict)
    """What differs between machines, and what a golden text has instead, equally long where lines may wrap."""

    def ask(self, **changes: object) -> None:
        self.asked = replace(self.asked, **changes)  # type: ignore[arg-type]

    def be(self, **changes: object) -> None:
        self.here = replace(self.here, **changes)  # type: ignore[arg-type]

    def set_rights(self, *, effective: str = NONE, ambient: str = NONE) -> None:
        """Capabilities, as the kernel writes them."""
        uid = os.geteuid()
        status = self.here.proc / "self" / "status"
        status.write_text(
            f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{effective}\nCapAmb:\t{ambient}\n"
        )

    def set_modes(self, *lines: str) -> None:
        """What nvidia-smi says."""
        (self.root / "bin" / "modes").write_text("".join(f"{line}\n" for line in lines))

    def leave_turned(self, *, boot: str = BOOT) -> None:
        """A clock that an agent locked before it died."""
        journal = KnobJournal(self.state_dir)
        change = KnobTurn(
            gpu_uuid="GPU-0",
            boot_id=boot,
            driver_version="580.65.06",
            knob="clock_mhz",
            old=(),
            new=(345.0, 1200.0),
            at=datetime(2026, 3, 1, tzinfo=UTC),
        )
        journal.write(change)
        journal.close()

    def leave_worker(self, replica_id: str, *, is_running: bool) -> None:
        """The record of a replica whose process is this one, or one that ended long ago."""
        ticks = int(
            Path(f"/proc/{os.getpid()}/stat")
            .read_text()
            .rpartition(") ")[2]
            .split()[19]
        )
        records = Records(self.state_dir / "workers", Record)
        identity = Identity(
            pid=os.getpid(),
            start_ticks=ticks if is_running else ticks - 1,
            boot=boot_id(),
        )
        record = a_record(records, replica_id, identity=identity)
        records.save(record)
        records.close()

    @property
    def state_dir(self) -> Path:
        assert self.asked.state_dir is not None
        return self.asked.state_dir

    def examine(self) -> tuple[NodeFinding, ...]:
        return examine(self.asked, self.here)

    def levels(self) -> dict[str, list[str]]:
        """Levels by check."""
        found: dict[str, list[str]] = {}
        for finding in self.examine():
            found.setdefault(finding.check, []).append(finding.level)
        return found

    def find(self, check: str, level: str) -> NodeFinding:
        """The one finding of that check with that level."""
        found = self.examine()
        matching = [
            each for each in found if (each.check, each.level) == (check, level)
        ]
        assert len(matching) == 1, (
            f"{len(matching)} {level} of {check} in\n{render(found)}"
        )
        return matching[0]

    def shown(self) -> str:
        """The table, the same on every machine."""
        table = render(self.examine())
        for own, ours in self.shown_as.items():
            table = table.replace(own, ours)
        return table


@contextmanager
def doctor_node(library: Path, *, in_a_process: bool = False) -> Iterator[DoctorNode]:
    """A healthy node with two GPUs; nothing of it is left. `in_a_process`: its driver is asked there, as in life."""
    root = Path(tempfile.mkdtemp(prefix="pd", dir="/tmp"))
    plane = PaperControlPlane()
    thread = threading.Thread(
        target=plane.serve_forever, kwargs={"poll_interval": 0.05}
    )
    thread.start()
    asks = (
        nullcontext()
        if in_a_process or not use_here(library)
        else patch.object(driver, "answer_of", _answer)
    )
    try:
        with asks:
            yield _make(root, library, plane)
    finally:
        plane.shutdown()
        plane.server_close()
        thread.join()
        shutil.rmtree(root)


def _answer(
    command: Sequence[str], environment: Mapping[str, str], *, limit_s: float
) -> str:
    """What the program that asks the driver prints, without the cost of its start; other programs run."""
    if "agents.doctor.driver" not in command or limit_s < 1.0:
        return answer_of(command, environment, limit_s=limit_s)
    state_dir = Path(command[-1]) if "--try-writes" in command else None
    known = {STATE_VARIABLE: environment[STATE_VARIABLE]}
    with patch.dict(os.environ, known):
        facts = driver.read_driver(state_dir=state_dir)
    end_sessions()
    return msgspec.json.encode(facts).decode()


def _make(root: Path, library: Path, plane: PaperControlPlane) -> DoctorNode:
    for name in (
        "bin",
        "dev/shm",
        "proc/self",
        "proc/sys/kernel/random",
        "run/systemd/system",
        "units",
        "state",
    ):
        (root / name).mkdir(parents=True)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        (root / "dev" / name).touch()
    (root / "proc/sys/kernel/random/boot_id").write_text(f"{BOOT}\n")
    shutil.copy(UNITS / "plimsoll-agent.service", root / "units")
    (root / "templates.toml").write_text(TEMPLATES)
    smi = root / "bin" / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nexec cat {root}/bin/modes\n")
    smi.chmod(0o755)
    fake = FakeGpus(root / "gpus", count=2)
    here = Here(
        environment={
            **own_environment("CUDA_", "FAKE_"),
            "PATH": f"{root}/bin:{FAKES}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "LD_LIBRARY_PATH": str(library),
            STATE_VARIABLE: str(fake.path),
        },
        dev=root / "dev",
        proc=root / "proc",
        run=root / "run",
        units=(root / "none", root / "units"),
        python="3.11.9",
        package="0.1.0",
        open_files=65536,
        free_mib=lambda _: 76543.2,
        first_port=20300,
        port_count=100,
        limit_s=PATIENCE_S,
        driver_limit_s=PATIENCE_S,
    )
    asked = Asked(
        state_dir=root / "state",
        mps_dir=root / "mps",
        templates=root / "templates.toml",
        worker_user=OWN_USER,
        url=plane.url,
        token=TOKEN,
        node="n1",
    )
    user = f"{pwd.getpwuid(os.geteuid()).pw_name} (UID {os.geteuid()})"
    same = {
        str(root): str(NODE_DIRECTORY),
        user: "plimsoll-agent (UID 990)",
        plane.url: "http://plane:8080",
    }
    node = DoctorNode(
        root=root, fake=fake, plane=plane, asked=asked, here=here, shown_as=same
    )
    node.set_rights(effective=SYS_ADMIN)
    node.set_modes("GPU-0, Default, Enabled", "GPU-1, Default, Enabled")
    return node


def break_everything(node: DoctorNode) -> None:
    """One fault of each kind that a node can have while its driver still answers."""
    node.set_rights()
    node.be(open_files=1024, package="", free_mib=lambda _: 500.0)
    # GPU 0 is asked first; a GPU that is lost is asked once more after a new start of NVML.
    node.fake.fail("nvmlDeviceGetPowerUsage", 15, skip=1, times=2)
    node.fake.gpu(0).without = NO_GPM
    (node.root / "dev" / "nvidia-uvm").unlink()
    shutil.rmtree(node.root / "dev" / "shm")
    node.set_modes("GPU-0, Prohibited, Disabled")
    node.ask(mps_dir=node.root / ("m" * 70), token="plim_wrong", node="Node.example")
    node.leave_turned()
    node.leave_worker("chat-1", is_running=True)
    node.leave_worker("chat-2", is_running=False)
    with (node.state_dir / "knobs.journal").open("ab") as file:
        file.write(b"torn")
    (node.root / "templates.toml").write_text(
        TEMPLATES.replace('"sh"', '"/opt/none/serve"')
    )
    shutil.rmtree(node.root / "run" / "systemd")
    node.plane.status, node.plane.ahead_s = 503, 90.0
    node.plane.body = (
        b'{"status":"unavailable","checks":{"database":"no answer within 3 s"}}'
    )
