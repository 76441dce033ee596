"""Streams and answers of the APIs that language models are called by, as their references and servers show them.

OpenAI: chat and completions (chunks without types), responses (typed events; vLLM 0.32 writes the type last), speech to
text. Anthropic: messages. Each has what comes before the first token, the tokens, and what follows the last one.
"""

import json
from dataclasses import dataclass


def data(document: object, *, event: str = "", end: str = "\n") -> bytes:
    """A server-sent event."""
    lines = [*([f"event: {event}"] if event else []), f"data: {json.dumps(document)}"]
    return (end.join(lines) + 2 * end).encode()


def chunk(delta: dict[str, object], finish: str | None = None, index: int = 0) -> bytes:
    """An event of a chat."""
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return data({"object": "chat.completion.chunk", "choices": [choice]})


def typed(kind: str, **fields: object) -> bytes:
    """An event that says its type, as Anthropic's and OpenAI's newer ones."""
    return data({"type": kind, **fields}, event=kind)


def last_typed(kind: str, **fields: object) -> bytes:
    """The same with its type last, and no line that names it."""
    return data({**fields, "type": kind})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiStream:
    """One answer, event by event."""

    before: tuple[bytes, ...]
    tokens: tuple[bytes, ...]
    after: tuple[bytes, ...]
    count: int
    """Tokens in it, as its usage states them, else as its events are."""
    path: str = "/v1/chat/completions"


ROLE = chunk({"role": "assistant", "content": ""})
DONE = b"data: [DONE]\n\n"
TRICKY = '" : {"type": "response.completed", "usage": {"output_tokens": 900, "completion_tokens": 900}}\n\ndata: x'
"""A text that quotes what events say."""


def usage(tokens: int) -> bytes:
    """The usage of a chat, as `stream_options.include_usage` asks for it."""
    stated = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9}
    details = {"completion_tokens_details": {"reasoning_tokens": 2}}
    return data({"choices": [], "usage": {**stated, **details}})


def _whole(tokens: int | None) -> dict[str, object]:
    stated = {"input_tokens": 19, "output_tokens": tokens, "total_tokens": 59}
    details = {"output_tokens_details": {"reasoning_tokens": 0}}
    text = {"type": "message", "content": [{"type": "output_text", "text": TRICKY}]}
    return {
        "id": "resp_1",
        "error": None,
        "output": [] if tokens is None else [text],
        "text": {"format": {"type": "text"}},
        "usage": None if tokens is None else {**stated, **details},
        "metadata": {"k": "v" * 500},
    }


def _say(text: str) -> bytes:
    return typed("response.output_text.delta", delta=text, item_id="m", logprobs=[])


def _block(kind: str, field: str, text: str) -> bytes:
    delta = {"type": kind, field: text}
    return typed("content_block_delta", index=0, delta=delta)


_MESSAGE_START = typed(
    "message_start",
    message={"role": "assistant", "usage": {"input_tokens": 19, "output_tokens": 1}},
)
_TEXT_START = typed(
    "content_block_start", index=0, content_block={"type": "text", "text": ""}
)
_MESSAGE_END = (
    typed("content_block_stop", index=0),
    typed(
        "message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 40}
    ),
    typed("message_stop"),
)
_CREATED = (
    typed("response.created", response=_whole(None)),
    typed("response.in_progress", response=_whole(None)),
)
_ITEM = (
    typed("response.output_item.added", item={"type": "message", "content": []}),
    typed("response.content_part.added", part={"type": "output_text", "text": ""}),
)
_RESPONSES = "/v1/responses"
_MESSAGES = "/v1/messages"

STREAMS = {
    "chat": ApiStream(
        before=(ROLE,),
        tokens=(chunk({"content": "a"}), chunk({"content": TRICKY})),
        after=(chunk({}, "stop"), DONE),
        count=2,
    ),
    "chat with usage": ApiStream(
        before=(ROLE, b": ping\n\n"),
        tokens=(chunk({"content": "a"}), chunk({"content": "b c"})),
        after=(chunk({"content": ""}, "length"), usage(7), DONE),
        count=7,
    ),
    "chat with usage in each event": ApiStream(
        before=(data({"choices": [], "usage": {"completion_tokens": 0}}),),
        tokens=tuple(
            data(
                {
                    "choices": [{"index": 0, "delta": {"content": text}}],
                    "usage": {"prompt_tokens": 9, "completion_tokens": tokens},
                }
            )
            for text, tokens in (("a", 1), ("b c", 3), ("d", 4))
        ),
        after=(DONE,),
        count=4,
    ),
    "completions with usage in the last token's event": ApiStream(
        path="/v1/completions",
        before=(),
        tokens=(
            data({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}),
            data(
                {
                    "choices": [{"index": 0, "text": "b c", "finish_reason": "length"}],
                    "usage": {"prompt_tokens": 9, "completion_tokens": 3},
                }
            ),
        ),
        after=(DONE,),
        count=3,
    ),
    "chat that thinks": ApiStream(
        before=(ROLE,),
        tokens=(
            chunk({"reasoning_content": "a"}),
            chunk({"reasoning": "b"}),
            chunk({"content": "c"}),
        ),
        after=(DONE,),
        count=3,
    ),
    "chat that calls a tool": ApiStream(
        before=(chunk({"role": "assistant", "content": None}),),
        tokens=(
            chunk({"tool_calls": [{"index": 0, "type": "function"}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        ),
        after=(chunk({}, "tool_calls"), DONE),
        count=2,
    ),
    "chat with fields that are null": ApiStream(
        before=(chunk({"role": "assistant", "content": "", "tool_calls": None}),),
        tokens=tuple(
            chunk({"role": None, "content": text, "reasoning_content": None})
            for text in ("a", "", "b")
        ),
        after=(chunk({"role": None, "content": "", "tool_calls": []}, "stop"), DONE),
        count=3,
    ),
    "chat whose role comes with each token": ApiStream(
        before=(b": a comment\n\n", data({"choices": [], "prompt": "filtered"})),
        tokens=tuple(
            chunk({"role": "assistant", "content": text, "reasoning": thought})
            for text, thought in (("", "a"), ("b", ""))
        ),
        after=(chunk({"role": "assistant", "content": ""}, "stop"), usage(5), DONE),
        count=5,
    ),
    "chat whose last token has the usage": ApiStream(
        before=(ROLE,),
        tokens=(
            chunk({"content": "a"}),
            chunk({"content": "b"}),
            data(
                {
                    "choices": [
                        {
                            "index": 0,
                            "delta": {"content": "c"},
                            "finish_reason": "length",
                        }
                    ],
                    "usage": {"completion_tokens": 9},
                }
            ),
        ),
        after=(DONE,),
        count=9,
    ),
    "chat with a usage in each event": ApiStream(
        before=(ROLE,),
        tokens=tuple(
            data(
                {
                    "choices": [{"index": 0, "delta": {"content": "a"}}],
                    "usage": {"prompt_tokens": 9, "completion_tokens": count},
                }
            )
            for count in (2, 4)
        ),
        after=(DONE,),
        count=4,
    ),
    "chat in parts": ApiStream(
        before=(ROLE,),
        tokens=(
            chunk({"content": [{"type": "thinking", "thinking": "a"}]}),
            chunk({"content": [{"type": "text", "text": "b"}]}),
        ),
        after=(chunk({"content": []}, "stop"), DONE),
        count=2,
    ),
    "completions": ApiStream(
        path="/v1/completions",
        before=(),
        tokens=tuple(
            data({"choices": [{"index": 0, "text": text, "finish_reason": None}]})
            for text in ("a", "", "b")
        ),
        after=(
            data({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}),
            DONE,
        ),
        count=3,
    ),
    "responses": ApiStream(
        path=_RESPONSES,
        before=(*_CREATED, *_ITEM),
        tokens=(_say("a"), _say(TRICKY), _say("c")),
        after=(
            typed("response.output_text.done", text="a"),
            typed("response.output_item.done", item={"type": "message"}),
            typed("response.completed", response=_whole(40)),
        ),
        count=40,
    ),
    "responses with types last": ApiStream(
        path=_RESPONSES,
        before=(last_typed("response.created", response=_whole(None)),),
        tokens=(
            last_typed("response.reasoning_text.delta", delta="a"),
            last_typed("response.output_text.delta", delta="b"),
        ),
        after=(last_typed("response.incomplete", response=_whole(3)),),
        count=3,
    ),
    "responses that call": ApiStream(
        path=_RESPONSES,
        before=_CREATED,
        tokens=(
            typed("response.output_item.added", item={"type": "function_call"}),
            typed("response.function_call_arguments.delta", delta="{}"),
        ),
        after=(typed("response.completed", response=_whole(5)),),
        count=5,
    ),
    "messages": ApiStream(
        path=_MESSAGES,
        before=(_MESSAGE_START, _TEXT_START, typed("ping")),
        tokens=(
            _block("text_delta", "text", "a"),
            _block("text_delta", "text", TRICKY),
        ),
        after=_MESSAGE_END,
        count=40,
    ),
    "messages that think and call": ApiStream(
        path=_MESSAGES,
        before=(
            _MESSAGE_START,
            typed(
                "content_block_start",
                content_block={"type": "thinking", "thinking": ""},
            ),
        ),
        tokens=(
            _block("thinking_delta", "thinking", "a"),
            typed("content_block_start", content_block={"type": "tool_use"}),
            _block("input_json_delta", "partial_json", "{}"),
        ),
        after=(_block("signature_delta", "signature", "x"), *_MESSAGE_END),
        count=40,
    ),
    "speech to text": ApiStream(
        path="/v1/audio/transcriptions",
        before=(),
        tokens=(
            typed("transcript.text.delta", delta="a"),
            typed("transcript.text.delta", delta="b"),
        ),
        after=(typed("transcript.text.done", text="ab", usage={"output_tokens": 2}),),
        count=2,
    ),
}

_ABORTED = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
_SAID = (ROLE, chunk({"content": "a"}))

FAILED = {
    "chat": (ROLE, data({"error": {"message": "the engine died", "code": 500}}), DONE),
    "chat, as vLLM wrote it": (
        *_SAID,
        data({"object": "error", "message": "died", "type": "InternalServerError"}),
    ),
    "chat, with choices before it": (
        *_SAID,
        data({"choices": [_ABORTED], "error": {"code": 502, "message": "died"}}),
    ),
    "chat, by the reason of its end": (*_SAID, data({"choices": [_ABORTED]}), DONE),
    "chat, with a type before it": (
        *_SAID,
        data({"type": "server_error", "error": "died"}),
    ),
    "chat of llama.cpp": (*_SAID, b'error: {"code":500,"message":"died"}\n\n'),
    "chat, by an event's name": (*_SAID, b"event: error\ndata: died\n\n"),
    "responses": (
        *_CREATED,
        typed("response.failed", response={"error": {"code": "server_error"}}),
    ),
    "messages": (_MESSAGE_START, typed("error", error={"type": "overloaded_error"})),
}
"""Streams in which the server tells that it failed."""

UNKNOWN = {
    "another API": (data({"generated": "a", "seq": 1}), data({"generated": "b"})),
    "another API with types": (typed("token", text="a"), typed("end")),
    "no JSON": (b"data: hello\n\n", b"data: world\n\n"),
    "comments alone": (b": ping\n\n",),
}

WHOLE = {
    "chat": ({"choices": [{"message": {"content": TRICKY}}], "usage": {"completion_tokens": 7}}, 7),
    "responses": (_whole(40), 40),
    "messages": ({"content": [], "usage": {"input_tokens": 19, "output_tokens": 40}}, 40),
    "embeddings": (
        {"data": [{"embedding": [0.1] * 9}], "usage": {"prompt_tokens": 8, "total_tokens": 8}},
        0,
    ),
    "scores": ({"data": [{"score": 0.5}], "usage": {"prompt_tokens": 8}}, 0),
    "counted prompts": ({"input_tokens": 12, "context_management": {"original_input_tokens": 12}}, 0),
    "without usage": ({"text": "a"}, 1),
}  # fmt: skip
"""Answers that come at once, and their tokens."""
