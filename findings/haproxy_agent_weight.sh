#!/usr/bin/env bash
# A server that asks HAProxy for half its weight gets none, and no check is failing.
#
# Version: Debian's haproxy 2.6.12-1+deb12u4 (installed; nothing is downloaded).
# Guess: after "drain", "up" brings the server back. (Of "50%" nothing was guessed before the first probe showed weight
#   0; then, that such a backend is DOWN and answers 503.)
# Seen: 50 % of 1 is 0. The server is not shown as drained or down, its backend is, and each request gets 503. "up" does
#   not undo it, only "100%" does. With weight 100 half is 50, and requests are served. After "drain" the word "up"
#   changes nothing either, because it speaks of health: only "ready" ends a drain.
set -euo pipefail

folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
[[ $(haproxy -v) == *"version 2.6.12"* ]] || { echo "this needs haproxy 2.6.12"; exit 1; }
free='import socket; held = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*(each.getsockname()[1] for each in held))'
read -r light heavy site agent < <(python3 -c "$free")

cat >"$folder/haproxy.cfg" <<CFG
global
    stats socket $folder/admin
defaults
    mode http
    timeout connect 1s
    timeout client 5s
    timeout server 5s
    default-server agent-check agent-port $agent agent-inter 50ms
frontend site
    bind 127.0.0.1:$site
    http-request return status 200
listen weight-1
    bind 127.0.0.1:$light
    server gpu 127.0.0.1:$site weight 1
listen weight-100
    bind 127.0.0.1:$heavy
    server gpu 127.0.0.1:$site weight 100
CFG
haproxy -f "$folder/haproxy.cfg" -db 2>/dev/null &

python3 - "$folder/admin" "$agent" "$light" "$heavy" <<'PYTHON'
import socket, sys, threading, time, urllib.error, urllib.request

path, agent, light, heavy = sys.argv[1:]
listener, said = socket.create_server(("127.0.0.1", int(agent))), ["up"]


def answer_agent_checks():
    while True:
        caller, _ = listener.accept()
        caller.sendall(said[0].encode() + b"\n")
        caller.close()


def look(port, backend):
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(path)
        admin.sendall(b"show stat\n")
        names, *rows = (row.split(",") for row in admin.makefile().read().splitlines() if row)
    rows = {row[1]: dict(zip(names, row)) for row in rows if row[0] == backend}
    try:
        code = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).status
    except urllib.error.HTTPError as error:
        code = error.code
    return rows["gpu"]["status"], int(rows["gpu"]["weight"]), rows["BACKEND"]["status"], code


threading.Thread(target=answer_agent_checks, daemon=True).start()
seen = []
for said[0] in ("50%", "up", "100%", "drain", "up", "ready"):
    time.sleep(2)  # forty of the agent's checks
    seen.append((look(light, "weight-1"), look(heavy, "weight-100")))
    print(f"agent says {said[0]!r}: {seen[-1]}")


def states(weight, *, serves):
    return ("no check", weight, "UP" if serves else "DOWN", 200 if serves else 503)


halved = (states(0, serves=False), states(50, serves=True))
whole = (states(1, serves=True), states(100, serves=True))
drained = tuple(("DRAIN (agent)", weight, "DOWN", 503) for weight in (1, 100))
sys.exit(0 if seen == [halved, halved, whole, drained, drained, whole] else "changed: the agent's words work otherwise")
PYTHON
