"""Options that several commands of an agent have, and readers of bounded numbers."""

import argparse
import ipaddress
import re
from collections.abc import Callable

NAME_PATTERN = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""What the control plane takes as the name of a node or project."""


def add_log_level(options: argparse._ActionsContainer) -> None:
    """Add `--log-level`."""
    options.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info"
    )


def add_listener(options: argparse._ActionsContainer, *, host_help: str) -> None:
    """Add `--host` and `--port`: where a process on this node listens."""
    # The server asks for no token, so other hosts reach it only where an operator says so.
    options.add_argument(
        "--host", default="127.0.0.1", help=f"{host_help} (default: %(default)s)"
    )
    options.add_argument(
        "--port",
        type=integer(0, 65535),
        default=0,
        help="default: any free one; printed at the start",
    )


def add_worker_user(options: argparse._ActionsContainer) -> None:
    """Add `--worker-user`."""
    options.add_argument(
        "--worker-user",
        default="",
        metavar="NAME",
        help="user that replicas and tasks run as (default: the agent's own; of root: plimsoll-worker)",
    )


def add_worker_users(options: argparse._ActionsContainer) -> None:
    """Add `--worker-user` and `--worker-user-for`."""
    add_worker_user(options)
    options.add_argument(
        "--worker-user-for",
        type=_project_user,
        action="append",
        default=[],
        metavar="PROJECT=NAME",
        help="another user for a project's replicas and tasks, with --sharing turns",
    )


def add_pods(options: argparse._ActionsContainer) -> None:
    """Add `--launcher` and what it needs where replicas are Pods."""
    options.add_argument(
        "--launcher",
        choices=("process", "kubernetes"),
        default="process",
        help="processes of this machine, or Pods of the cluster in which this agent is a Pod (default: %(default)s)",
    )
    options.add_argument(
        "--cluster-node",
        default="",
        metavar="NAME",
        help="this node's name in the cluster",
    )
    options.add_argument(
        "--own-pod",
        default="",
        metavar="NAME",
        help="this agent's Pod, whose image templates run that name none",
    )
    options.add_argument(
        "--pod-namespace",
        default="plimsoll-replicas",
        metavar="NAME",
        help="where Pods are created (default: %(default)s)",
    )
    options.add_argument(
        "--pod-runtime-class",
        default="",
        metavar="NAME",
        help="of Pods, e.g. nvidia (default: the cluster's)",
    )
    options.add_argument(
        "--pod-gpu-claim",
        action="store_true",
        help="give Pods the ResourceClaim by which the Pod of this node's MPS daemons has its GPUs (DRA)",
    )


def as_node_name(cluster_node: str) -> str:
    """The name of a cluster's node as Plimsoll has it: the cluster's may hold dots."""
    return cluster_node.replace(".", "-")[:63].rstrip("-")


def _project_user(text: str) -> tuple[str, str]:
    project, _, user = text.partition("=")
    # A name that no project can have would leave its replicas to the other user, and say nothing.
    if not re.fullmatch(NAME_PATTERN, project) or not user:
        raise argparse.ArgumentTypeError(
            f"{text!r} must look like team-a=worker-a, the project in lower-case letters, digits and dashes, 63 at most"
        )
    return project, user


def integer(low: int, high: int) -> Callable[[str], int]:
    """Return a reader of integers within bounds."""

    def read(text: str) -> int:
        # int() would also read "1_000", and argparse would word its failure without the bounds.
        if not text.strip().lstrip("+").isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                f"{text!r} must be a whole number from {low} to {high}"
            )
        return int(text)

    return read


def amount(high: float) -> Callable[[str], float]:
    """Return a reader of numbers from 0 up to a bound."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        # Written as one chain because a comparison with NaN is never true: "nan" is refused, too.
        if not 0.0 <= number <= high:
            raise argparse.ArgumentTypeError(
                f"{text!r} must be a number from 0 to {high:g}"
            )
        return number

    return read


def positive(text: str) -> float:
    """Return a number above 0."""
    number = float(text)
    # The chain is false for NaN as well.
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be a finite number above 0")
    return number


def address(text: str) -> str:
    """Return an IP address as it is usually written."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be an IP address of this machine, 0.0.0.0 or ::"
        ) from None


def network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return a network of IP addresses."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; write e.g. 10.0.0.0/8") from None
