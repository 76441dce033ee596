"""The HTTP or SOCKS proxy of the environment that an address is asked through, by the rules that curl has.

`http_proxy`, `https_proxy` and `all_proxy`, in small or capital letters, name a proxy; `no_proxy` lists who is asked
directly: names with all below them, addresses, networks such as 10.0.0.0/8, `*`. This machine never needs a proxy.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit, urlunsplit

from app.base.errors import PlimsollError

_SOCKS = ("socks5", "socks5h")
_SCHEMES = ("http", "https", *_SOCKS)
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class ProxyUnusable(PlimsollError):
    """The environment names a proxy that cannot be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A proxy of the environment."""

    url: str
    """It may hold a password."""
    variable: str

    @property
    def place(self) -> str:
        """Its address without a password, and where that is from."""
        return f"{_without_password(_parts(self.url))} ({self.variable})"


def find_proxy(url: str, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy that an address is asked through; None: directly. Raises ProxyUnusable, with the remedy."""
    asked = _parts(url)
    host = (asked.hostname or "").rstrip(".").lower()
    if not host or _is_here(host):
        return None
    found = _named(asked.scheme, environment)
    port = _port(asked)
    listed = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if found is None or any(
        _covers(entry.lower(), host, port) for entry in re.split(r"[\s,]+", listed)
    ):
        return None
    _refuse_unusable(found, host)
    return found


def _named(scheme: str, environment: Mapping[str, str]) -> Proxy | None:
    for name in (f"{scheme}_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            # An empty variable counts as none: `ALL_PROXY= plimsoll ...` takes it away for one command.
            if stated := environment.get(variable, "").strip():
                url = stated if "://" in stated else f"http://{stated}"
                return Proxy(url=url, variable=variable)
    return None


def _refuse_unusable(proxy: Proxy, host: str) -> None:
    parts = _parts(proxy.url)
    otherwise = f"name another one, or add {host} to NO_PROXY"
    if parts.scheme not in _SCHEMES or not parts.hostname or _port(parts) is None:
        raise ProxyUnusable(
            f"{proxy.variable}: {_without_password(parts)!r} is no address of a proxy "
            f"(http://HOST:PORT, https://... or socks5://...); {otherwise}"
        )
    # An optional part of the HTTP library.
    if parts.scheme in _SOCKS and find_spec("socksio") is None:
        raise ProxyUnusable(
            f"{proxy.place} is a SOCKS proxy, which needs a Python package more: `pip install socksio`; or {otherwise}"
        )


def _is_here(host: str) -> bool:
    """Whether that is this machine, which no proxy elsewhere could reach."""
    address = _address(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    # 0.0.0.0 and :: connect to this machine, too.
    return address.is_loopback or address.is_unspecified


def _address(text: str) -> _Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _covers(entry: str, host: str, port: int | None) -> bool:
    """Whether an entry of `no_proxy` means the host."""
    if entry in ("", "*"):
        return entry == "*"
    address = _address(host)
    network = _network(entry)
    if network is not None:
        return address is not None and address in network
    name, _, only_port = entry.rpartition(":")
    if only_port.isdigit() and name:
        return only_port == f"{port}" and _covers(name, host, port)
    # `.example.com` and `*.example.com` are the forms of other programs.
    name = entry.removeprefix("*").strip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        # [fd00::1], but not [fd00::1]:8080.
        bare = re.sub(r"^\[(.*)\]$", r"\1", entry)
        return ipaddress.ip_network(bare, strict=False)
    except ValueError:
        return None


def _parts(url: str) -> SplitResult:
    """Those of an address; none of what is no address, of which the client that asks it tells its user."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", url, "", "")


def _port(parts: SplitResult) -> int | None:
    """That of an address, by default its scheme's; None where it is no port."""
    try:
        return parts.port or {"https": 443, "http": 80}.get(parts.scheme, 1080)
    except ValueError:
        return None


def _without_password(parts: SplitResult) -> str:
    user, at, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{name}:***@{host}" if at else host))
