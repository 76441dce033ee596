#!/usr/bin/env bash
# One server without a health check makes the fleet's count of failed checks NaN, and its alert silent.
#
# Versions: Debian's haproxy 2.6.12-1+deb12u4 and prometheus 2.42.0+ds-5+deb12u1 (installed; nothing is downloaded).
# Guess: HAProxy's own exporter writes 0, not NaN, for what a server has not, such as maxconn.
# Seen: it writes NaN, for counters too. Prometheus stores NaN as a sample, so the sum over a checked and an unchecked
#   server is NaN, and  sum(haproxy_server_check_failures_total) > 0  never fires although the checked one fails.
#   Without the unchecked server the same sum is a number.
set -euo pipefail

folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
[[ $(haproxy -v) == *"version 2.6.12"* ]] || { echo "this needs haproxy 2.6.12"; exit 1; }
[[ $(prometheus --version 2>&1) == *"version 2.42.0+ds"* ]] || { echo "this needs prometheus 2.42.0+ds"; exit 1; }
read -r exporter prometheus closed < <(python3 - <<'PYTHON'
import socket

held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(each.getsockname()[1] for each in held))
PYTHON
)

cat >"$folder/haproxy.cfg" <<CFG
defaults
    mode http
    timeout connect 1s
    timeout client 5s
    timeout server 5s
frontend metrics
    bind 127.0.0.1:$exporter
    http-request use-service prometheus-exporter
backend fleet
    server checked 127.0.0.1:$closed check inter 100ms fall 1000
    server unchecked 127.0.0.1:$closed
CFG
cat >"$folder/prometheus.yml" <<YAML
scrape_configs:
  - job_name: haproxy
    scrape_interval: 1s
    static_configs: [{targets: ["127.0.0.1:$exporter"]}]
YAML
haproxy -f "$folder/haproxy.cfg" -db 2>/dev/null &
prometheus --config.file="$folder/prometheus.yml" --storage.tsdb.path="$folder/data" \
    --web.listen-address="127.0.0.1:$prometheus" 2>/dev/null &

python3 - "$prometheus" <<'PYTHON'
import json, sys, time, urllib.parse, urllib.request

name = "haproxy_server_check_failures_total"


def ask(expression):
    words = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/api/v1/query?{words}", timeout=5) as answer:
        return [each["value"][1] for each in json.load(answer)["data"]["result"]]


failures = []
for _ in range(60):  # until a check failed and both servers were scraped
    time.sleep(1)
    try:
        failures = ask(f'{name}{{server="checked"}} > 0')
    except OSError:
        continue
    if failures:
        break
seen = {text: ask(text) for text in (f"sum({name})", f"sum({name}) > 0", f'sum({name}{{server="checked"}}) > 0')}
for text, answer in seen.items():
    print(f"{text}: {answer or 'nothing'}")
whole, alert, alone = seen.values()
sys.exit(0 if failures and whole == ["NaN"] and alert == [] and len(alone) == 1 else "changed: no NaN any more")
PYTHON
