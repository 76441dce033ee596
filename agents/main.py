"""The `plimsoll-agent` command: its arguments; `agents.daemon.build` does the rest, imported only when they are right.

With `restore`, `doctor`, `gateway`, `mig`, `mps`, `worker` or `trainer` as the first argument it is another command,
whose arguments `agents.gpu.knobs.restore`, `agents.doctor.doctor`, `agents.gateway.command`, `agents.gpu.mig.command`,
`agents.gpu.node.mps_daemons`, `agents.serving.arguments` or `agents.trainer.trainer` reads.

Exit codes: 0 after SIGTERM or SIGINT, 1 when the environment fails (no driver, no state directory), 2 for wrong
arguments.
"""

import argparse
import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from agents.base.arguments import (
    NAME_PATTERN,
    add_log_level,
    add_pods,
    add_worker_users,
    address,
    as_node_name,
    integer,
    network,
    positive,
)

TOKEN_VARIABLE = "PLIMSOLL_TOKEN"

DEVICES = (
    "simulated: GPUs and requests in trace time (default); fake: real HTTP on CPU workers, no GPU; "
    "nvml: watch real GPUs, change nothing; gpu: real GPUs, with clocks, power limits, SM percents, and replicas as "
    "processes"
)

EXAMPLES = """\
examples:
  plimsoll-agent --url http://127.0.0.1:8080 --token-file agent.token --node n1 --gpu-type V100-32GB --gpus 2
  plimsoll-agent --url https://plimsoll.example --token-file agent.token --device nvml --state-dir ~/.plimsoll
  plimsoll-agent restore --state-dir ~/.plimsoll   put clocks and power limits back that a dead agent left turned
  plimsoll-agent doctor --state-dir ~/.plimsoll    what an agent can do on this node, and what it cannot
  plimsoll-agent mig list                          slices of GPUs in MIG mode; `mig --help` on changing them
  plimsoll-agent mps --mps-dir /run/plimsoll-mps   keep the MPS daemons up in a container of their own
"""


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="plimsoll-agent",
        description="Carry out the Plimsoll control plane's decisions on this machine, and report what happens.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_control_plane(parser)
    _add_node(parser)
    _add_device(parser)
    _add_gpu_device(parser)
    add_pods(parser.add_argument_group("replicas as Pods (device gpu)"))
    _add_router(parser)
    return parser


def _add_control_plane(parser: argparse.ArgumentParser) -> None:
    reach = parser.add_argument_group("control plane")
    reach.add_argument(
        "--url",
        required=True,
        help="address of the control plane's API, e.g. http://127.0.0.1:8080",
    )
    reach.add_argument(
        "--token-file",
        type=Path,
        help="file with the node's token, or with a join token or that of a service account, which the agent exchanges "
        "for its own",
    )

    reach.add_argument(
        "--ca-file",
        type=Path,
        help="authority (PEM) of the control plane's certificate (default: the system's)",
    )
    reach.add_argument(
        "--client-cert",
        type=Path,
        metavar="FILE",
        help="this node's certificate with its private key (PEM), if the control plane requires one",
    )


def _add_node(parser: argparse.ArgumentParser) -> None:
    node = parser.add_argument_group("node")
    node.add_argument(
        "--node",
        # Checked here, because otherwise only the first observation would be refused for it.
        type=_node,
        help=f"name of this node (default: --cluster-node, else the host's, {_host_name()})",
    )
    node.add_argument(
        "--state-dir",
        type=Path,
        help="directory that keeps the last command across restarts (default: nothing is kept)",
    )
    node.add_argument(
        "--period-s",
        type=positive,
        default=1.0,
        help="seconds between observations (default: %(default)s)",
    )
    node.add_argument(
        "--speed",
        type=positive,
        default=1.0,
        help="seconds of the agent's clock per second, for demos",
    )
    node.add_argument(
        "--parent",
        type=int,
        metavar="PID",
        help="stop when this process, which started the agent, has ended",
    )
    node.add_argument(
        "--metrics-port",
        type=integer(0, 65535),
        default=0,
        metavar="PORT",
        help="answer GET /metrics there, e.g. 9410 (default: no)",
    )
    node.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address of that port, which needs no token (default: %(default)s)",
    )
    add_log_level(node)


def _add_device(parser: argparse.ArgumentParser) -> None:
    device = parser.add_argument_group("device")
    device.add_argument(
        "--device",
        choices=("simulated", "fake", "nvml", "gpu"),
        default="simulated",
        help=DEVICES,
    )
    device.add_argument(
        "--gpu-type",
        help="GPU type by its catalogue name, e.g. V100-32GB; nvml, gpu: default the driver's name",
    )
    fake = "simulated, fake"
    device.add_argument(
        "--gpus",
        type=integer(1, 64),
        default=1,
        help=f"{fake}: number of GPUs (default: %(default)s)",
    )
    device.add_argument(
        "--gpu-memory-mib",
        type=positive,
        help="simulated, fake: memory of each GPU; nvml, gpu: of those whose driver does not tell it (default: known "
        "by the type)",
    )
    device.add_argument(
        "--launch-s",
        type=positive,
        default=5.0,
        help=f"{fake}: start of a replica (default: %(default)s)",
    )
    device.add_argument(
        "--load",
        type=_load,
        action="append",
        default=[],
        metavar="SERVICE=RPS",
        help="simulated: requests",
    )
    device.add_argument(
        "--seed",
        type=int,
        default=0,
        help="simulated: of the load and the noise (default: %(default)s)",
    )


def _add_gpu_device(parser: argparse.ArgumentParser) -> None:
    device = parser.add_argument_group("device gpu")
    device.add_argument(
        "--templates",
        type=Path,
        metavar="FILE",
        help="programs that may run as replicas (TOML)",
    )
    add_worker_users(device)
    device.add_argument(
        "--sharing",
        choices=("mps", "turns"),
        default="mps",
        help="by MPS with SM percents where it works, or by turns without limits (default: %(default)s)",
    )
    device.add_argument(
        "--mps-dir",
        type=Path,
        metavar="DIR",
        help="of MPS' sockets, a short path (default: STATE_DIR/mps)",
    )
    device.add_argument(
        "--keep-replicas",
        action="store_true",
        help="keep replicas running when the agent ends, for the next one",
    )


def _add_router(parser: argparse.ArgumentParser) -> None:
    router = parser.add_argument_group("requests (devices fake and gpu)")
    router.add_argument(
        "--router",
        choices=("own", "haproxy"),
        default="own",
        help="what routes them: this process or, with device gpu, HAProxy (default: %(default)s)",
    )
    router.add_argument(
        "--router-port",
        type=integer(0, 65535),
        default=0,
        help="(default: any free one)",
    )
    router.add_argument(
        "--router-host",
        type=address,
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; 0.0.0.0 or :: means all (default: %(default)s)",
    )
    _add_access(router)


def _add_access(router: argparse._ArgumentGroup) -> None:
    router.add_argument(
        "--router-allow",
        type=network,
        action="append",
        default=[],
        metavar="CIDR",
        help="only accept requests from this network, e.g. 10.0.0.0/8; may be repeated",
    )
    router.add_argument(
        "--router-tls-cert", type=Path, metavar="FILE", help="certificate chain, PEM"
    )
    router.add_argument(
        "--router-tls-key", type=Path, metavar="FILE", help="its private key, PEM"
    )
    router.add_argument(
        "--router-keys",
        type=Path,
        metavar="FILE",
        help="lines `SERVICE = SHA-256 of its key`; requests need `Authorization: Bearer KEY`",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script."""
    # The first word selects a subcommand, whose parser is in a module that is imported only then.
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["restore"]:
        from agents.gpu.knobs.restore import main as restore

        return restore(given[1:])
    if given[:1] == ["doctor"]:
        from agents.doctor.doctor import main as doctor

        return doctor(given[1:])
    if given[:1] == ["gateway"]:
        from agents.gateway.command import main as gateway

        return gateway(given[1:])
    if given[:1] == ["mig"]:
        from agents.gpu.mig.command import main as mig

        return mig(given[1:])
    # Also of an installation without the control plane, whose `plimsoll` has the same two.
    if given[:1] == ["worker"]:
        from agents.serving.arguments import main as worker

        return worker(given[1:])
    if given[:1] == ["trainer"]:
        from agents.trainer.trainer import main as trainer

        return trainer(given[1:])
    if given[:1] == ["mps"]:
        from agents.gpu.node.mps_daemons import main as mps

        return mps(given[1:])
    parser = make_parser()
    options = parser.parse_args(given)
    token = _read_token(parser, options)
    _refuse_contradictions(parser, options)
    options.node = options.node or as_node_name(options.cluster_node) or _host_name()
    # Imported late: aiohttp alone takes longer than --help may.
    from agents.daemon.build import run_agent

    return run_agent(options, token=token, boot=uuid4().hex)


def _read_token(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """The token from its file; empty: the node has one of its own. Without any the process ends."""
    # Imported late, like what runs the agent.
    from agents.sync.node_token import FILE, is_exchanged, read_token

    # Another's, such as that of the process that started this: what this process starts has no business with it.
    os.environ.pop(TOKEN_VARIABLE, None)
    token = ""
    try:
        if options.token_file is not None:
            token = read_token(options.token_file)
    except OSError as error:
        parser.error(f"--token-file: {error}")
    is_kept = options.state_dir is not None and (options.state_dir / FILE).exists()
    if not token and not is_kept:
        parser.error(
            f"pass a token with --token-file; `plimsoll token create --scope join` creates one ({TOKEN_VARIABLE} is "
            "not read: what a process was started with stays in its /proc/PID/environ)"
        )
    if is_exchanged(token) and options.state_dir is None:
        parser.error(
            "a join token needs --state-dir, where the node's own token is kept; it enrols a node only once"
        )
    return token


def _refuse_contradictions(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> None:
    """End the process where options do not go together, which no reader of a single option can see."""
    if not options.url.startswith(("http://", "https://")):
        parser.error(f"--url: {options.url!r} must begin with http:// or https://")
    if options.device == "gpu" and options.state_dir is None:
        parser.error(
            "--device gpu needs --state-dir: its changes and processes must be found again after a crash"
        )
    if options.launcher == "kubernetes" and not (
        options.device == "gpu" and options.cluster_node and options.own_pod
    ):
        parser.error(
            "--launcher kubernetes needs --device gpu, --cluster-node and --own-pod"
        )
    # HAProxy's configuration names the port, so port 0, any free one, cannot be given.
    if options.router == "haproxy" and (
        options.device != "gpu" or not options.router_port
    ):
        parser.error(
            "--router haproxy needs --device gpu and --router-port, the port that HAProxy takes requests at"
        )
    if (options.router_tls_cert is None) != (options.router_tls_key is None):
        parser.error("--router-tls-cert and --router-tls-key go together")
    # A real GPU reports its type; these have none of their own.
    if options.device in ("simulated", "fake") and not options.gpu_type:
        parser.error(
            f"--device {options.device} needs --gpu-type, e.g. --gpu-type V100-32GB"
        )


def _host_name() -> str:
    """Lower case and without the domain, as a node's name must be."""
    return socket.gethostname().partition(".")[0].lower()


def _node(text: str) -> str:
    if not re.fullmatch(NAME_PATTERN, text):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be lower-case letters, digits and dashes, 63 at most"
        )
    return text


def _load(text: str) -> tuple[str, float]:
    service, separator, rate = text.partition("=")
    if not service or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} must look like chat=50")
    try:
        return service, positive(rate)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{rate!r} is not a rate; write e.g. {service}=50"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
