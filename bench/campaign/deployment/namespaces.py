"""A host of its own for a program of the run, which can vanish as a machine does whose power is cut.

It is a network namespace whose only link is a pair of virtual interfaces. Once the link is cut both ends send to a
hardware address that no host has: packets are lost silently, without FIN, RST or ICMP. An interface that is taken down
would not do: the kernel tells programs of it, and this machine would send the packets out by its default route.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from sqlalchemy import make_url

from app.postgres.process import find_binaries

# Kept for benchmarks by RFC 2544: no network uses them. A pair has eight of them, chosen by the run's process id.
_FIRST, _PAIRS = IPv4Address("198.18.0.0"), 1 << 14
_NOBODY = "02:00:00:00:00:00"
_NEEDED = (1 << 12) | (1 << 21)
"""CAP_NET_ADMIN and CAP_SYS_ADMIN (linux/capability.h)."""
# Users other than root do not have it in their PATH.
_IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherHost:
    """Where programs run that reach this machine by one link only."""

    name: str
    """Of the namespace, and of this machine's end of the link."""
    here: str
    """This machine's address on the link."""
    database: str
    """This machine's, too: PostgreSQL listens there, so that the way to it alone can be cut."""
    there: str

    @property
    def command(self) -> tuple[str, ...]:
        """What goes before a program that is to run there; its process id is the program's."""
        return (_IP, "netns", "exec", self.name)

    def cut(self) -> None:
        """Nothing passes from now on, and no side is told."""
        self.cut_database()
        _lose(f"neigh replace {self.there} dev {self.name}")
        _lose(f"-n {self.name} neigh replace {self.here} dev eth0")

    def cut_database(self) -> None:
        """Nothing goes from there to the database any more, whose answers are not acknowledged; all else passes."""
        _lose(f"-n {self.name} neigh replace {self.database} dev eth0")

    def heal(self) -> None:
        """Everything passes again; harmless where it does already."""
        _ip(f"neigh flush dev {self.name} nud permanent")
        _ip(f"-n {self.name} neigh flush dev eth0 nud permanent")

    def to_database(self, url: str) -> str:
        """The address, from there, of a server whose programs are `postgres_programs`."""
        real = make_url(url)
        port = int(str(real.query["port"]))
        there = real.set(host=self.database, port=port, query={})
        return there.render_as_string(hide_password=False)

    def postgres_programs(self, directory: Path, real: Path | None) -> Path:
        """PostgreSQL's programs, in this directory, with a server that listens on the link besides its socket."""
        binaries = find_binaries(real)
        directory.mkdir()
        access = directory / "pg_hba.conf"
        access.write_text(f"local all all trust\nhost all all {self.there}/32 trust\n")
        # The last of equal options counts: the product's own say that it listens on no address.
        for name, more in {
            "initdb": "",
            "postgres": f"-c listen_addresses={self.database} -c hba_file={access}",
        }.items():
            script = directory / name
            script.write_text(f'#!/bin/sh\nexec {binaries.path(name)} "$@" {more}\n')
            script.chmod(0o755)
        return directory


def may_make() -> bool:
    """Whether this process may make namespaces and links."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (effective,) = re.findall(r"CapEff:\s*(\w+)", status)
    return bool(_IP) and int(effective, 16) & _NEEDED == _NEEDED


@contextmanager
def other_host() -> Iterator[OtherHost]:
    """One per process; nothing is left of it afterwards. Raises CalledProcessError where it may not be made."""
    first = _FIRST + os.getpid() % _PAIRS * 8
    host = OtherHost(
        name=f"plim{os.getpid()}",
        here=str(first + 1),
        there=str(first + 2),
        database=str(first + 3),
    )
    with ExitStack() as stack:
        _ip(f"netns add {host.name}")
        stack.callback(_ip, f"netns del {host.name}")
        _ip(f"link add {host.name} type veth peer name eth0 netns {host.name}")
        # Not left to the namespace's end, which comes later and waits for its last process.
        stack.callback(_ip, f"link del {host.name}")
        for each in (host.here, host.database):
            _ip(f"addr add {each}/29 dev {host.name}")
        _ip(f"-n {host.name} addr add {host.there}/29 dev eth0")
        _ip(f"link set {host.name} up")
        for each in ("eth0", "lo"):
            _ip(f"-n {host.name} link set {each} up")
        yield host


def _ip(arguments: str) -> None:
    subprocess.run([_IP, *arguments.split()], check=True)


def _lose(neighbour: str) -> None:
    """Send what goes to that neighbour nowhere."""
    # An entry that was learned is replaced; a permanent one is not asked for again.
    _ip(f"{neighbour} lladdr {_NOBODY} nud permanent")
