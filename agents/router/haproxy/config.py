"""HAProxy's configuration: what of it may be chosen, and the file's text; see `agents.router.haproxy.process`."""

from dataclasses import dataclass
from pathlib import Path

IN_SLO_TABLE = "answers_in_slo"


@dataclass(frozen=True, slots=True, kw_only=True)
class HaProxySettings:
    """How HAProxy is set up; `folder` holds configuration, map and socket, and is the agent's alone."""

    port: int
    folder: Path
    services: int = 64
    """Services that have a place."""
    replicas: int = 16
    """Replicas of one service that have a place, those that drain included."""
    replica_limit: int = 256
    queue_limit: int = 512
    """Requests that wait at most for each replica."""
    timeout_s: float = 2.0
    """For an answer on the socket."""

    @property
    def socket_path(self) -> Path:
        return self.folder / "haproxy.sock"

    @property
    def map_path(self) -> Path:
        return self.folder / "services.map"

    @property
    def slo_path(self) -> Path:
        """The map of SLOs in ms."""
        return self.folder / "slo.map"

    @property
    def config_path(self) -> Path:
        return self.folder / "haproxy.cfg"


def make_config(settings: HaProxySettings) -> str:
    """The configuration file's text."""
    head = _CONFIG.format(
        socket=settings.socket_path,
        map=settings.map_path,
        slo=settings.slo_path,
        table=IN_SLO_TABLE,
        services=settings.services,
        port=settings.port,
        replica_limit=settings.replica_limit,
        queue_limit=settings.queue_limit,
    )
    template = f"    server-template s 1-{settings.replicas} 127.0.0.1:1 disabled\n"
    return head + "".join(
        f"\nbackend b{number}\n{template}" for number in range(1, settings.services + 1)
    )


_CONFIG = """\
# Written by plimsoll-agent; changes are lost.
global
    stats socket {socket} mode 600 level admin

defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    timeout queue 60s
    # A request that could not be connected goes elsewhere; what was sent is never sent again.
    retries 2
    retry-on conn-failure
    option redispatch 1
    balance roundrobin
    option httpchk GET /v2/health/ready
    # A server that runs but knows no such path, as vLLM, is well.
    http-check expect status 200-299,404
    default-server check inter 500 fall 3 rise 1 observe layer7 error-limit 3 on-error mark-down
    default-server maxconn {replica_limit} maxqueue {queue_limit}

frontend node
    bind :{port}
    http-request return status 200 if {{ path /v2/health/live /v2/health/ready }}
    http-request use-service prometheus-exporter if {{ path /metrics }}
    http-request deny deny_status 504 if {{ req.hdr_val(Plimsoll-Deadline-Ms) le 0 }} {{ req.hdr(Plimsoll-Deadline-Ms) -m found }}
    http-request deny deny_status 404 unless {{ path_reg ^/v2/models/[^/]+/(infer|ready)$ }}
    http-request set-var(txn.backend) path,field(4,/),url_dec,map({map})
    http-request deny deny_status 404 unless {{ var(txn.backend) -m found }}
    http-request set-var(txn.slo_ms) path,field(4,/),url_dec,map_str_int({slo},0)
    http-request set-var(txn.came_ms) date(0,ms)
    http-request track-sc0 var(txn.backend) table {table}
    http-response set-var(txn.late_ms) date(0,ms),sub(txn.came_ms),sub(txn.slo_ms)
    http-response sc-inc-gpc0(0) if {{ var(txn.late_ms) -m int le 0 }} {{ status lt 500 }}
    use_backend %[var(txn.backend)]

backend {table}
    stick-table type string len 16 size {services} store gpc0
"""  # noqa: E501  HAProxy takes a condition on one line only
