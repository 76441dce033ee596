"""`plimsoll gateway`: its arguments and its process.

Exit codes: 0 after SIGTERM or SIGINT, 1 when the environment fails (no HAProxy, a port that is taken), 2 for wrong
arguments.
"""

import argparse
import asyncio
import logging
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from agents.base.arguments import add_log_level, address, integer
from agents.base.device import DeviceError
from agents.base.waits import first, stop_event

DESCRIPTION = (
    "Serves every service of the cluster at one address: requests to /v2/models/SERVICE/... go to nodes that are ready "
    "for the service. The gateway runs HAProxy and updates its routes from the control plane. While the control plane "
    "is away, the last routes stay in force."
)
EXAMPLES = """\
examples:
  plimsoll gateway --url http://127.0.0.1:8080 --token-file viewer.token
  plimsoll gateway --url https://plimsoll.example --token-file viewer.token --host 0.0.0.0 --port 443 \\
      --tls-cert chain.pem --tls-key key.pem

Set PLIMSOLL_GATEWAY_URL of the control plane to the address that callers use: it becomes every service's endpoint.
"""

MAX_PLACES = 20_000
"""HAProxy lists all places in one answer, of which the gateway reads 16 MiB."""

log = logging.getLogger(__name__)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="plimsoll gateway",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_control_plane(parser)
    _add_callers(parser)
    _add_nodes(parser)
    return parser


def _add_control_plane(parser: argparse.ArgumentParser) -> None:
    reach = parser.add_argument_group("control plane")
    reach.add_argument(
        "--url", required=True, help="address of its API, e.g. http://127.0.0.1:8080"
    )
    reach.add_argument(
        "--token-file",
        type=Path,
        required=True,
        help="file with a token of scope viewer; a token bound to projects limits the gateway to them",
    )
    reach.add_argument(
        "--ca-file",
        type=Path,
        help="authority (PEM) of its certificate (default: the system's)",
    )
    reach.add_argument(
        "--state-dir",
        type=Path,
        default=_home() / ".plimsoll" / "gateway",
        help="HAProxy's files and socket (default: %(default)s)",
    )
    reach.add_argument(
        "--parent",
        type=integer(1, 2**31 - 1),
        default=0,
        metavar="PID",
        help="stop when this process, which started the gateway, has ended",
    )
    add_log_level(reach)


def _home() -> Path:
    """The user's folder; the root directory for users without one, as platforms make them up for containers."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def _add_callers(parser: argparse.ArgumentParser) -> None:
    callers = parser.add_argument_group("requests")
    callers.add_argument(
        "--host",
        type=address,
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; 0.0.0.0 or :: means all (default: %(default)s)",
    )
    callers.add_argument(
        "--port",
        type=integer(1, 65535),
        default=8000,
        help="(default: %(default)s)",
    )
    callers.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="certificate chain, PEM"
    )
    callers.add_argument(
        "--tls-key", type=Path, metavar="FILE", help="its private key, PEM"
    )
    callers.add_argument(
        "--metrics-port",
        type=integer(0, 65535),
        default=0,
        metavar="PORT",
        help="HAProxy's metrics for Prometheus, on this machine (default: none)",
    )


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    nodes = parser.add_argument_group("nodes")
    nodes.add_argument(
        "--node-ca",
        type=Path,
        metavar="FILE",
        help="speak TLS to the nodes, whose certificates this authority (PEM) signed",
    )
    nodes.add_argument(
        "--services",
        type=integer(1, 1000),
        default=128,
        help="places for services (default: %(default)s)",
    )
    nodes.add_argument(
        "--nodes",
        type=integer(1, 256),
        default=16,
        help="places for the nodes of one service (default: %(default)s)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if not options.url.startswith(("http://", "https://")):
        parser.error(f"--url: {options.url!r} must begin with http:// or https://")
    if (options.tls_cert is None) != (options.tls_key is None):
        parser.error("--tls-cert and --tls-key go together")
    if options.services * options.nodes > MAX_PLACES:
        parser.error(
            f"--services times --nodes must be at most {MAX_PLACES}, not {options.services * options.nodes}"
        )
    try:
        token = options.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--token-file: {error}")
    if not token:
        parser.error(f"--token-file: {options.token_file} is empty")
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        return asyncio.run(_run(options, token))
    except (DeviceError, OSError, ValueError) as error:
        log.error("the gateway cannot run: %s", error)
        return 1


async def _run(options: argparse.Namespace, token: str) -> int:
    # Imported late: aiohttp alone takes longer than --help may.
    from agents.gateway.config import GatewaySettings
    from agents.gateway.follow import Follower, ListSource
    from agents.gateway.proxy import GatewayProxy
    from agents.router.haproxy.supervised import ProxyServer

    settings = GatewaySettings(
        # HAProxy's sockets and files are named in its configuration, wherever it is started.
        folder=options.state_dir.absolute(),
        host=options.host,
        port=options.port,
        certificate=options.tls_cert,
        private_key=options.tls_key,
        node_ca=options.node_ca and options.node_ca.absolute(),
        metrics_port=options.metrics_port,
        services=options.services,
        nodes=options.nodes,
    )
    source = ListSource(
        url=options.url,
        token=token,
        tls=options.ca_file and ssl.create_default_context(cafile=str(options.ca_file)),
    )
    proxy = GatewayProxy(settings)

    async def restore() -> None:
        await proxy.put(proxy.table)

    server = ProxyServer(proxy, settings.folder, restore)
    async with stop_event(options.parent) as stop:
        await server.open()
        try:
            log.info("requests are taken at %s port %d", settings.host, settings.port)
            # An unforeseen error ends it, too.
            await first(stop.wait(), Follower(source, proxy, settings).run())
        finally:
            await server.close(keep=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
