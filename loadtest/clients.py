"""Calls of the `openai` and `anthropic` clients to an engine and to a gateway in front of it: all their call
kinds, and the differences between two servers' responses.

A call is a function of a client. Its result, or exception, is made plain: ids and times are left out, and the
pieces of a stream are joined where they only carry text, since an engine cuts it as its steps fall.
Everything else must be the same, including fields that the clients do not know.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from loadtest import sdks

Call = Callable[[Any], Any]

MODEL = "m"
CHAT = [
    {"role": "system", "content": "You answer in few words."},
    {"role": "user", "content": "Where does the river end? Grüße, 河 🙂"},
]
SAY = [{"role": "user", "content": "Where does the river end?"}]
TOOL = {
    "name": "look_up",
    "description": "Looks a place up.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string", "maxLength": 8}},
        "required": ["place"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": TOOL}]
SCHEMA = {
    "type": "object",
    "properties": {"sea": {"type": "boolean"}},
    "required": ["sea"],
    "additionalProperties": False,
}
FIXED: dict[str, Any] = {"model": MODEL, "temperature": 0, "seed": 7}
MESSAGE: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 12,
    "messages": SAY,
    "extra_body": {"temperature": 0},  # which this client no longer knows
}

OF_EACH_ANSWER = frozenset(
    {
        "id",
        "created",
        "created_at",
        "completed_at",
        "request_id",
        "item_id",
        "response_id",
    }
)
"""Fields that differ between two responses of one engine."""
NUM_TRIES = 4
TEXTS = ("text", "delta", "content", "arguments", "partial_json", "reasoning")


class Sea(BaseModel):
    sea: bool


def _chat(**more: Any) -> Call:
    return lambda client: client.chat.completions.create(
        **{**FIXED, "messages": CHAT, "max_tokens": 12, **more}
    )


def _completion(**more: Any) -> Call:
    return lambda client: client.completions.create(
        **{**FIXED, "prompt": "The river ends", "max_tokens": 8, **more}
    )


def _response(**more: Any) -> Call:
    asked = {"model": MODEL, "temperature": 0, "input": "Where does the river end?", "max_output_tokens": 12}
    return lambda client: client.responses.create(**{**asked, "store": False, **more})


def _message(**more: Any) -> Call:
    return lambda client: client.messages.create(**{**MESSAGE, **more})


def _raw(client: Any) -> Any:
    """Headers that clients read, beside the response."""
    raw = client.chat.completions.with_raw_response.create(**FIXED, messages=CHAT, max_tokens=4)
    return [raw.status_code, raw.headers["content-type"], raw.parse()]


def _helper_stream(client: Any) -> Any:
    with client.chat.completions.stream(**FIXED, messages=CHAT, max_tokens=12) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion()


def _parse(client: Any) -> Any:
    return client.chat.completions.parse(**FIXED, messages=CHAT, max_tokens=20, response_format=Sea)


def _message_stream(client: Any) -> Any:
    with client.messages.stream(**MESSAGE) as stream:
        text = "".join(stream.text_stream)
        return [text, stream.get_final_message()]


ANTHROPIC_TOOL = {"name": "look_up", "description": "Looks a place up.", "input_schema": TOOL["parameters"]}

OPENAI: Mapping[str, Call] = {
    "models": lambda client: list(client.models.list()),
    "chat": _chat(),
    "chat streamed": _chat(stream=True),
    "chat streamed with usage": _chat(stream=True, stream_options={"include_usage": True}),
    "chat with two choices": _chat(n=2, temperature=1),
    "chat with logprobs": _chat(logprobs=True, top_logprobs=2, max_tokens=3),
    "chat that stops": _chat(stop=["e"], max_tokens=40),
    "chat of parts": _chat(messages=[{"role": "user", "content": [{"type": "text", "text": "The river?"}]}]),
    "chat with a tool that must be called": _chat(
        tools=TOOLS, tool_choice={"type": "function", "function": {"name": "look_up"}}, max_tokens=40
    ),
    "the same streamed": _chat(
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "look_up"}},
        max_tokens=40,
        stream=True,
    ),
    "chat with tools": _chat(tools=TOOLS),
    "chat after a tool's answer": _chat(
        tools=TOOLS,
        messages=[
            *CHAT,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "look_up", "arguments": '{"place": "sea"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "far away"},
        ],
    ),
    "chat by a schema": _chat(
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, max_tokens=20
    ),
    "chat with an engine's own fields": _chat(extra_body={"top_k": 3, "min_tokens": 2, "ignore_eos": True}),
    "chat parsed by the client": _parse,
    "chat by the client's stream helper": _helper_stream,
    "chat with its headers": _raw,
    "completion": _completion(),
    "completion streamed": _completion(stream=True),
    "completion of several prompts": _completion(prompt=["The river", "The sea"]),
    "completion of tokens": _completion(prompt=[5, 6, 7, 8]),
    "completion echoed with logprobs": _completion(echo=True, logprobs=1, max_tokens=1),
    "response": _response(),
    "response streamed": _response(stream=True),
    "response of items with instructions": _response(input=SAY, instructions="Answer in few words."),
    "response with tools": _response(tools=[{"type": "function", **TOOL}]),
    "response that is unknown": lambda client: client.responses.retrieve("resp_unknown"),
    "embeddings of a model that has none": lambda client: client.embeddings.create(
        model=MODEL, input="river"
    ),
    "an unknown model": _chat(model="unknown"),
    "a wrong field": _chat(temperature=-1),
    "a prompt that is too long": _completion(prompt="river " * 9000),
    "messages that are none": _chat(messages=[]),
    "a wrong role": _chat(messages=[{"role": "unknown_role", "content": "x"}]),
}

ANTHROPIC: Mapping[str, Call] = {
    "message": _message(),
    "message streamed": _message(stream=True),
    "message with a system prompt": _message(system="You answer in few words."),
    "message of blocks": _message(
        messages=[{"role": "user", "content": [{"type": "text", "text": "The river?"}]}]
    ),
    "message that stops": _message(stop_sequences=["e"], max_tokens=40),
    "message with tools": _message(tools=[ANTHROPIC_TOOL]),
    "message with a tool that must be called": _message(
        tools=[ANTHROPIC_TOOL], tool_choice={"type": "tool", "name": "look_up"}, max_tokens=40
    ),
    "message after a tool's answer": _message(
        tools=[ANTHROPIC_TOOL],
        messages=[
            *SAY,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "look_up", "input": {"place": "sea"}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "far away"}],
            },
        ],
    ),
    "message by the client's stream helper": _message_stream,
    "tokens counted": lambda client: client.messages.count_tokens(model=MODEL, messages=SAY),
    "an unknown model": _message(model="unknown"),
    "a wrong field": _message(extra_body={"temperature": -1}),
    "messages that are none": _message(messages=[]),
}


CALLS = [*(("openai", name) for name in OPENAI), *(("anthropic", name) for name in ANTHROPIC)]

OURS: Mapping[str, Callable[[Any], Any]] = {
    "models": lambda result: [each["object"] for each in result],
    "an unknown model": lambda result: (result["error"], result["status"]),
    "response that is unknown": lambda result: (result["error"], result["status"]),
}
"""Calls that a gateway answers itself, for the whole fleet: equivalent for a client, in its own words."""


def ask(url: str, kind: str, name: str) -> Any:
    """Plain result of the client of that kind (`openai`, `anthropic`)."""
    if kind == "openai":
        with sdks.openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            return _progress(OPENAI[name], client)
    with sdks.anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        return _progress(ANTHROPIC[name], client)


async def ask_async(url: str, kind: str) -> Any:
    """Plain results of streams side by side, as applications have them: their events, without the texts,
    which depend on the requests that an engine computes together."""
    if kind == "openai":
        async with sdks.openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            asked = {**FIXED, "messages": CHAT, "max_tokens": 12, "stream": True}
            return await _side_by_side(client.chat.completions.create, asked)
    async with sdks.anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as other:
        return await _side_by_side(other.messages.create, {**MESSAGE, "stream": True})


async def _side_by_side(create: Callable[..., Any], asked: Mapping[str, Any]) -> list[list[Any]]:
    async def one() -> list[Any]:
        return _joined([_untexted(_plain(each)) async for each in await create(**asked)])

    return await asyncio.gather(*[one() for _ in range(4)])


def _untexted(value: Any) -> Any:
    if isinstance(value, dict):
        is_text = {key: key in TEXTS and isinstance(each, str) for key, each in value.items()}
        return {key: "" if is_text[key] else _untexted(each) for key, each in value.items()}
    return [_untexted(each) for each in value] if isinstance(value, list) else value


def _progress(call: Call, client: Any) -> Any:
    try:
        answer = call(client)
        return plain(
            list(answer) if isinstance(answer, Iterable) and not isinstance(answer, BaseModel) else answer
        )
    except (sdks.openai.APIStatusError, sdks.anthropic.APIStatusError) as exc:
        return {"error": type(exc).__name__, "status": exc.status_code, "body": plain(exc.body)}
    except sdks.openai.OpenAIError as exc:  # the client's own exception for a truncated response
        return {"error": type(exc).__name__}


def plain(value: Any) -> Any:
    """Result as JSON values, without the parts that differ between two responses of one engine."""
    made = _plain(value)
    return _joined(made) if isinstance(made, list) else made


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_unset=True, warnings=False)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if key not in OF_EACH_ANSWER}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _joined(events: Sequence[Any]) -> list[Any]:
    """Events with neighbours joined that differ in a text alone."""
    found: list[Any] = []
    for event in events:
        if found and (both := _both(found[-1], event)) is not None:
            found[-1] = both
        else:
            found.append(event)
    return found


def _both(one: Any, other: Any) -> Any:
    if one == other and not isinstance(one, dict):
        return one
    if not (isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys()):
        return None
    made = {}
    for key in one:
        if key in TEXTS and isinstance(one[key], str) and isinstance(other[key], str):
            made[key] = one[key] + other[key]
        elif one[key] == other[key]:
            made[key] = one[key]
        elif isinstance(one[key], dict):
            if (made_of := _both(one[key], other[key])) is None:
                return None
            made[key] = made_of
        elif isinstance(one[key], list) and isinstance(other[key], list) and len(one[key]) == len(other[key]):
            pairs = [_both(a, b) for a, b in zip(one[key], other[key], strict=True)]
            if None in pairs:
                return None
            made[key] = pairs
        else:
            return None
    return made


def difference(direct: str, through: str, kind: str, name: str) -> str | None:
    """Difference between a call's direct result and the one through the gateway, or None. The engine is
    called once before: it reports its cached tokens. A busy engine may respond in another way (two tokens in
    one piece), so a different result is tried again, and must once equal one of the engine's own."""
    view = OURS.get(name, lambda result: result)
    ask(direct, kind, name)
    expected: list[Any] = []
    for _ in range(NUM_TRIES):
        expected.append(view(ask(direct, kind, name)))
        if (found := view(ask(through, kind, name))) in expected:
            return None
    return f"{kind}: {name}: {_first_difference(expected[-1], found)}"


def _first_difference(expected: Any, found: Any, path: str = "") -> str:
    pairs: Iterable[tuple[Any, Any, Any]] = ()
    if isinstance(expected, dict) and isinstance(found, dict):
        pairs = [(key, expected.get(key), found.get(key)) for key in [*expected, *(found.keys() - expected)]]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = zip(itertools.count(), expected, found, strict=False)
    for key, one, other in pairs:
        if one != other:
            return _first_difference(one, other, f"{path}.{key}")
    return f"{path}: {expected!r} is {found!r}"
