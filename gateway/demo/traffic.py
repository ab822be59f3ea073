"""Traffic of the demo: what is asked, and when. Pure: a function of the seed.

    agents      a system prompt with tools, then a loop: each turn adds a tool call and its result
    documents   questions about a few long texts, each asked by many
    chats       short questions that were never asked before

Agents' loops have the shape of recorded coding agents (mini-SWE-agent): a long common beginning, some ten
turns a few seconds apart, tool results of some hundred tokens. The text is random words. The assistant's
turns are made of them too, so that both sides get the very same requests, whatever they answer.
"""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MODEL = "demo"
OUTPUT_TOKENS = 24
NUM_TOOLS = 12
SYSTEM_WORDS = 1_600
DOCUMENT_WORDS = 3_000
NUM_DOCUMENTS = 6
TURNS = (6, 14)
"""Fewest and most turns of an agent."""
RESULT_WORDS = (60, 400)
TURN_GAP_S = (1.0, 5.0)
"""Least and longest time between two turns of an agent."""
AGENT_GAP_S, DOCUMENT_GAP_S, CHAT_GAP_S = 2.6, 1.2, 1.5
"""Mean time between two new agents, questions about documents, and chats."""

_CONSONANTS, _VOWELS = "bcdfghklmnprstvw", "aeiou"


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """Request at a time in seconds since the start; `kind` is agent, document or chat."""

    at_s: float
    kind: str
    body: dict[str, Any]


def traffic(seed: int = 1) -> Iterator[DemoRequest]:
    """Requests in order of their times, without end."""
    rng = random.Random(seed)
    words = _words(rng)
    streams = [_documents(rng, words), _chats(rng, words), *(_agents(rng, words, i) for i in range(2))]
    yield from heapq.merge(*streams, key=lambda request: request.at_s)


def _agents(rng: random.Random, words: list[str], number: int) -> Iterator[DemoRequest]:
    """Two kinds of agents, each with a beginning of its own. Their turns overlap: several are at work."""
    system = {"role": "system", "content": _text(rng, words, SYSTEM_WORDS)}
    tools = [_tool(rng, words) for _ in range(NUM_TOOLS)]
    due: list[tuple[float, int, list[dict[str, Any]], int]] = []
    begins_s, num_begun = number * AGENT_GAP_S, 0
    while True:
        if not due or begins_s <= due[0][0]:
            task = {"role": "user", "content": _text(rng, words, rng.randint(*RESULT_WORDS))}
            heapq.heappush(due, (begins_s, num_begun, [system, task], rng.randint(*TURNS)))
            num_begun += 1
            begins_s += rng.expovariate(1 / (2 * AGENT_GAP_S))
            continue
        at_s, agent, messages, turns = heapq.heappop(due)
        yield DemoRequest(at_s, "agent", _body(list(messages), tools=tools))
        if turns > 1:
            more = [*messages, *_turn(rng, words, len(messages))]
            heapq.heappush(due, (at_s + rng.uniform(*TURN_GAP_S), agent, more, turns - 1))


def _turn(rng: random.Random, words: list[str], number: int) -> list[dict[str, Any]]:
    """A tool call and its result."""
    call = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "run", "arguments": f'{{"command": "{_text(rng, words, 6)}"}}'},
    }
    return [
        {"role": "assistant", "content": _text(rng, words, 15), "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": _text(rng, words, rng.randint(*RESULT_WORDS)),
        },
    ]


def _documents(rng: random.Random, words: list[str]) -> Iterator[DemoRequest]:
    documents = [_text(rng, words, DOCUMENT_WORDS) for _ in range(NUM_DOCUMENTS)]
    at_s = 0.0
    while True:
        at_s += rng.expovariate(1 / DOCUMENT_GAP_S)
        content = f"{rng.choice(documents)}\n\n{_text(rng, words, 12)}?"
        yield DemoRequest(at_s, "document", _body([{"role": "user", "content": content}]))


def _chats(rng: random.Random, words: list[str]) -> Iterator[DemoRequest]:
    at_s = 0.0
    while True:
        at_s += rng.expovariate(1 / CHAT_GAP_S)
        content = _text(rng, words, rng.randint(20, 200))
        yield DemoRequest(at_s, "chat", _body([{"role": "user", "content": content}]))


def _body(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    asked = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": OUTPUT_TOKENS}
    return {"model": MODEL, "messages": messages, **asked, **fields}


def _tool(rng: random.Random, words: list[str]) -> dict[str, Any]:
    name, about = "_".join(rng.sample(words, 2)), _text(rng, words, 20)
    properties = {
        word: {"type": "string", "description": _text(rng, words, 6)} for word in rng.sample(words, 3)
    }
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _words(rng: random.Random) -> list[str]:
    return ["".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(2)) for _ in range(800)]


def _text(rng: random.Random, words: list[str], num: int) -> str:
    return " ".join(rng.choices(words, k=num))
