"""The text of HAProxy's configuration, which `agents.router.haproxy.config` fills in."""

from http import HTTPStatus

from agents.router.request_router import LONGEST_START_S

# The first answer comes when a replica has started. Without a check: the agent, which is there, or nothing is. Without
# weight: the map alone sends requests there. A thread may see it and the servers' states at different moments, and the
# path and the headers go by the map.
WAITING = f"""\
    http-request set-timeout server {int(LONGEST_START_S) + 60}s if {{ var(txn.waits) -m bool }}
    # Who refused would be asked again: the one replica, or the place where what waits was given up.
    http-request disable-l7-retry if {{ nbsrv lt 2 }} || {{ var(txn.waits) -m bool }}
    use-server w1 if {{ var(txn.waits) -m bool }}
    server w1 127.0.0.1:1 disabled no-check weight 0 maxconn 0 maxqueue 0 observe none
"""
# Without delay: HAProxy would hold a token back for what may follow it.
STREAMS = """\
    balance leastconn
    option http-no-delay
    filter lua.meter
"""
ERRORS = {
    HTTPStatus.BAD_REQUEST: "not a valid HTTP request",
    HTTPStatus.REQUEST_TIMEOUT: "the request did not arrive within 60 s",
    HTTPStatus.INTERNAL_SERVER_ERROR: "HAProxy failed",
    HTTPStatus.BAD_GATEWAY: "the replica gave no complete answer",
    HTTPStatus.SERVICE_UNAVAILABLE: "no replica of the service can take requests",
    HTTPStatus.GATEWAY_TIMEOUT: "the replica did not answer within 60 s",
}

CONFIG = """\
# Written by plimsoll-agent; changes are lost.
{contents}global
    stats socket {socket} mode 600 level admin
    tune.bufsize {bufsize}
    lua-load {meter}
{user}
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    timeout queue 60s
    timeout check {check_ms}
    # A request that could not be connected, or was refused by 503, goes elsewhere; no other is ever sent again. Of 429,
    # by which TGI refuses, HAProxy 2.6 cannot do so.
    retries 2
    retry-on conn-failure 503
    option redispatch 1
    # To go elsewhere it must have come; of one that is longer than a buffer the rest follows.
    option http-buffer-request
    # Who leaves is no demand any more, and what still waits or works for them gives its place up.
    option abortonclose
    balance roundrobin
    option httpchk
    http-check connect
    http-check set-var-fmt(check.place) %[be_name]/%[srv_name]
    http-check send meth GET uri-lf %[var(check.place),map({ready},{ready_path})]
    # A server that runs but knows no such path is well.
    http-check expect status 200-299,{runs}
    # Bad answers are judged by meter.lua: to HAProxy a server that is busy (503) would have failed.
    default-server check inter 500 fall 3 rise 1 observe layer4 error-limit 3 on-error mark-down
    default-server maxconn {replica_limit} maxqueue {queue_limit}
{errors}
frontend node
    bind {bind}
    acl is_inference path_reg ^/v2/models/[^/]+(/versions/[^/]+)?/infer$
    acl is_ready path_reg ^/v2/models/[^/]+/ready$
    acl is_openai path_reg ^/services/[^/]+/v1/
    acl is_models path_reg ^/services/[^/]+/v1/models$
    acl is_metadata path_reg ^/v2/models/[^/]+(/versions/[^/]+(/ready)?|(/versions/[^/]+)?/(config|stats))?$
{rules}{answers}    http-request set-var(txn.service) path,field(4,/),url_dec
    http-request set-var(txn.service) path,field(3,/),url_dec if is_openai
    http-request set-var(txn.is_counted) bool(1) if is_inference
    http-request set-var(txn.is_counted) bool(1) if is_openai
    http-request return {leaves} if is_ready {{ var(txn.service),map({leaving}) -m found }}
    http-request set-var(txn.waits) bool(1) if {{ var(txn.service),map({waiting}) -m found }}
    http-request set-header {secret} %[var(txn.service),map({waiting})] if {{ var(txn.waits) -m bool }}
{keys}    http-request set-var(txn.backend) var(txn.service),map({map})
    http-request return {unknown_service} unless {{ var(txn.backend) -m found }}
    {models} if is_models METH_GET
    http-request return {unready} if is_ready {{ var(txn.waits) -m bool }}
    acl is_counted var(txn.is_counted) -m bool
    http-request set-var(txn.is_stream) bool(1) if is_counted {{ var(txn.backend) -m beg {streaming} }}
    acl is_stream var(txn.is_stream) -m bool
    http-request set-var(txn.slo_ms) var(txn.service),map_str_int({slo},0)
    http-request set-var(txn.itl_us) var(txn.service),map_str_int({itl},0)
    http-request set-var(txn.came_ms) date(0,ms)
    http-request track-sc0 var(txn.backend) table {table} if is_counted
    http-request set-var(txn.asks_model) bool(1) if is_openai
    http-request replace-path /services/[^/]+(/v1/.*) \\1 if is_openai !{{ var(txn.waits) -m bool }}
    # The tokens of a compressed answer could not be read on the way.
    http-request del-header Accept-Encoding if is_stream
    http-response set-var(txn.is_answered) bool(1)
    http-response set-header Retry-After {again} if {{ status 429 503 }} !{{ res.hdr(Retry-After) -m found }}
    http-response set-var(txn.late_ms) date(0,ms),sub(txn.came_ms),sub(txn.slo_ms)
    # The head of a stream says nothing of its first token: meter.lua does.
    http-response sc-inc-gpc0(0) if {{ var(txn.late_ms) -m int le 0 }} {{ status lt 500 }} !{{ status 429 }} !is_stream
    # HAProxy's own 400 is to a client that has left.
    http-after-response set-var(txn.judged) lua.judge if is_counted {{ status 400 }} !{{ var(txn.is_answered) -m bool }}
    http-after-response set-var(txn.judged) lua.judge if is_counted {{ status 429 }} || is_counted {{ status ge 500 }}
    # What is no request must not count as one.
    use_backend {asked} unless is_inference or {{ var(txn.asks_model) -m bool }}
    use_backend %[var(txn.backend)]

backend {asked}
    acl is_ready path_reg ^/v2/models/[^/]+/ready$
    http-request set-var(txn.replica) path,field(4,/),url_dec,map({metadata})
{readiness}    http-request set-dst var(txn.replica),field(1,:)
    http-request set-dst-port var(txn.replica),field(2,:)
    server replica 0.0.0.0:0 no-check

backend {table}
    stick-table type string len 16 size {services} store gpc0
"""
