"""How vLLM's APIs are asked, and what their answers state of their tokens."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MESSAGES = [{"role": "user", "content": "What is a load line?"}]
MANY = {"max_tokens": 300, "ignore_eos": True}
"""So many that a busy machine does not pass them on all at once."""
LONG = {"prompt": "a", "n": 2, "stream": True, **MANY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One way to ask vLLM."""

    path: str
    body: dict[str, Any] = field(default_factory=dict)
    streamed: dict[str, Any] = field(default_factory=dict)
    """What the body has besides where the answer is streamed."""
    tokens: str = "completion_tokens"
    """Its usage's name of them."""


INCLUDED = {"stream_options": {"include_usage": True}}
CHAT = {"messages": MESSAGES, "max_tokens": 20}
COMPLETIONS = {"prompt": "What is", "max_tokens": 20}
APIS = {
    "chat": Api(path="chat/completions", body=CHAT, streamed=INCLUDED),
    "chat with three answers": Api(
        path="chat/completions", body={**CHAT, "n": 3}, streamed=INCLUDED
    ),
    "chat with usage in each event": Api(
        path="chat/completions",
        body=CHAT,
        streamed={
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}
        },
    ),
    "chat with probabilities": Api(
        path="chat/completions",
        body={**CHAT, "logprobs": True, "top_logprobs": 2},
        streamed=INCLUDED,
    ),
    "completions": Api(path="completions", body=COMPLETIONS, streamed=INCLUDED),
    "completions of three prompts": Api(
        path="completions",
        body={**COMPLETIONS, "prompt": ["a", "b", "c"], "echo": True},
        streamed=INCLUDED,
    ),
    "responses": Api(
        path="responses",
        body={"input": "What is", "max_output_tokens": 20},
        tokens="output_tokens",
    ),
    "messages": Api(path="messages", body=CHAT, tokens="output_tokens"),
}
STREAMED = ("chat", "completions", "responses", "messages")
EMBEDDING = {
    "embeddings": {"input": ["a", "b"]},
    "score": {"text_1": "a", "text_2": ["b", "c"]},
    "rerank": {"query": "a", "documents": ["b", "c"]},
}


def usages(document: Any) -> Iterator[dict[str, Any]]:
    """All that an answer or an event states, wherever in it."""
    if isinstance(document, dict):
        if isinstance(found := document.get("usage"), dict):
            yield found
        for each in document.values():
            yield from usages(each)


def events(body: bytes) -> list[Any]:
    """What a stream's events hold."""
    lines = body.decode().splitlines()
    said = (each.removeprefix("data: ") for each in lines if each.startswith("data: "))
    return [json.loads(each) for each in said if each != "[DONE]"]


def stated_tokens(api: Api, body: bytes, *, is_stream: bool) -> int:
    """Of the entire answer: the last that is stated."""
    documents = events(body) if is_stream else [json.loads(body)]
    found = [usage[api.tokens] for each in documents for usage in usages(each)]
    assert found, body[-500:]
    return int(found[-1])
