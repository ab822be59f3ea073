"""Answers in a form that the client prescribes: tool calls, and JSON of a schema. Pure.

The simulated model calls tools in each turn of the user, and answers in words once results are there, so that
an agent's loop ends. Values are made from the tool's or the answer's JSON schema.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

Json = dict[str, Any]
Tool = tuple[str, Json]
"""Name, and JSON schema of the arguments."""

WORD = "simulated"
MAX_CALLS = 2
MAX_DEPTH = 12
"""Depth of nested values; a recursive schema's optional fields are left out below half of it."""
_FORMATS = {
    "date": "2026-01-02",
    "time": "03:04:05Z",
    "date-time": "2026-01-02T03:04:05Z",
    "email": "simulated@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "duration": "P1D",
}
_SAMPLES = (WORD, "Simulated", "S", "a", "1", "12", "123", "1234", "2026-01-02", "a1", "A-1", "a_b", "/a", "")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Form of an answer: calls of `num_calls` of the tools; else one of `choices`; else JSON of `schema`."""

    tools: tuple[Tool, ...] = ()
    num_calls: int = 0
    choices: tuple[str, ...] = ()
    schema: Json | None = None

    def texts(self, rng: random.Random) -> list[tuple[str | None, str]]:
        """Name of the called tool (None: the answer itself) and its JSON, for each part of the answer."""
        if self.num_calls:
            called = rng.sample(self.tools, min(self.num_calls, len(self.tools)))
            return [(name, encoded(schema, rng)) for name, schema in called]
        if self.choices:
            return [(None, rng.choice(self.choices))]
        return [(None, encoded(self.schema or {}, rng))]


def form_of(chat: Mapping[str, Any], body: Mapping[str, Any]) -> AnswerForm | None:
    """Form that a request prescribes; None for free text. `chat` has the messages and tools of `body` in the
    form of a chat, `body` the other fields in its own API's form."""
    tools = tuple(
        (str(tool["function"].get("name")), tool["function"].get("parameters") or {})
        for tool in chat.get("tools") or ()
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    )
    mode = _mode(body.get("tool_choice"))
    if tools and mode != "none" and (mode != "auto" or not _has_results(chat.get("messages") or ())):
        named = tuple(tool for tool in tools if tool[0] == mode)
        return AnswerForm(named or tools, 1 if named or not _may_be_parallel(body) else MAX_CALLS)
    choices, schema = _prescribed(body)
    return AnswerForm(choices=choices, schema=schema) if choices or schema is not None else None


def _mode(choice: object) -> str:
    """ "none", "auto", "required", or the name of the one tool, from any API's `tool_choice`."""
    if isinstance(choice, str):
        return choice
    if not isinstance(choice, dict):
        return "auto"
    name = choice.get("name") or (choice.get("function") or {}).get("name")
    return str(name or {"any": "required"}.get(str(choice.get("type")), choice.get("type") or "auto"))


def _may_be_parallel(body: Mapping[str, Any]) -> bool:
    choice = body.get("tool_choice")
    is_single = isinstance(choice, dict) and choice.get("disable_parallel_tool_use")
    return body.get("parallel_tool_calls") is not False and not is_single


def _has_results(messages: Sequence[Any]) -> bool:
    """True if results of tools follow the model's last turn."""
    for message in reversed(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role in ("assistant", "tool"):
            return bool(role == "tool")
    return False


def _prescribed(body: Mapping[str, Any]) -> tuple[tuple[str, ...], Json | None]:
    """Choices and schema by any API's field: `response_format`, `text.format`, `output_config.format`,
    `output_format`, vLLM's `structured_outputs`."""
    outputs = body.get("structured_outputs")
    if isinstance(outputs, dict):
        if outputs.get("choice"):
            return tuple(map(str, outputs["choice"])), None
        if outputs.get("json") is not None:
            given = outputs["json"]
            return (), msgspec.json.decode(given) if isinstance(given, str) else given
    text, config = body.get("text"), body.get("output_config")
    for given in (
        body.get("response_format"),
        text.get("format") if isinstance(text, dict) else None,
        config.get("format") if isinstance(config, dict) else None,
        body.get("output_format"),
    ):
        if isinstance(given, dict) and given.get("type") == "json_object":
            return (), {"type": "object", "properties": {WORD: {"type": "boolean"}}}
        if isinstance(given, dict) and given.get("type") == "json_schema":
            inner = given.get("json_schema")
            return (), (inner if isinstance(inner, dict) else given).get("schema") or {}
    return (), None


# values of a schema ------------------------------------------------------------------------------


def encoded(schema: Json, rng: random.Random) -> str:
    """A value of a JSON schema as JSON."""
    return msgspec.json.encode(value_of(schema, rng)).decode()


def value_of(schema: Any, rng: random.Random) -> Any:
    """A value of a JSON schema. Keywords that are not known here (`not`, `if`, `patternProperties`) are left
    alone; a pattern is met only where one of some samples meets it."""
    return _Maker(schema if isinstance(schema, dict) else {}, rng).value(schema, 0)


class _Maker:
    """Makes values of one schema; `$ref` names its definitions."""

    def __init__(self, root: Json, rng: random.Random) -> None:
        self._root = root
        self._rng = rng

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return None
        schema = self._whole(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._rng.choice(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                options = schema[key]
                return self.value(options[-1] if depth > MAX_DEPTH // 2 else options[0], depth + 1)
        match _type(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer" | "number" as kind:
                return _number(schema, is_whole=kind == "integer")
            case "boolean":
                return self._rng.random() < 0.5
            case "string":
                return _string(schema)
        return None

    def _whole(self, schema: Json) -> Json:
        """A schema with its reference and its `allOf` put in."""
        for _ in range(MAX_DEPTH):
            if (reference := schema.get("$ref")) is None:
                break
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**self._found(str(reference)), **rest}
        for part in schema.get("allOf") or ():
            part = self._whole(part) if isinstance(part, dict) else {}
            joined = {**schema.get("properties", {}), **part.get("properties", {})}
            required = [*schema.get("required", ()), *part.get("required", ())]
            schema = {**part, **schema, "properties": joined, "required": required}
        return schema

    def _found(self, reference: str) -> Json:
        found: Any = self._root
        for name in reference.removeprefix("#").strip("/").split("/"):
            found = found.get(name, {}) if isinstance(found, dict) and name else found
        return found if isinstance(found, dict) else {}

    def _object(self, schema: Json, depth: int) -> Json:
        properties = schema.get("properties") or {}
        required = schema.get("required") or ()
        names = [*properties, *(name for name in required if name not in properties)]
        if depth > MAX_DEPTH // 2:
            names = [name for name in names if name in required]
        return {name: self.value(properties.get(name, {}), depth + 1) for name in names}

    def _array(self, schema: Json, depth: int) -> list[Any]:
        prefix = schema.get("prefixItems") or ()
        least = schema.get("minItems", 0)
        most = schema.get("maxItems", max(1, least))
        num = max(min(max(1, least, len(prefix)), most), least) if depth <= MAX_DEPTH // 2 else least
        items = [*prefix[:num], *[schema.get("items") or {}] * (num - len(prefix))]
        return [self.value(item, depth + 1) for item in items]


def _type(schema: Json) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return str(next((each for each in kind if each != "null"), "null"))
    if kind is None:
        return "object" if "properties" in schema else "array" if "items" in schema else "string"
    return str(kind)


def _number(schema: Json, *, is_whole: bool) -> float | int:
    step = schema.get("multipleOf") or (1 if is_whole else 0)
    least, most = schema.get("minimum"), schema.get("maximum")
    if (above := schema.get("exclusiveMinimum")) is not None:
        least = above + (step or 0.5)
    if (below := schema.get("exclusiveMaximum")) is not None:
        most = below - (step or 0.5)
    value = 1 if least is None else least
    if most is not None and value > most:
        value = most if least is None else (least + most) / 2
    if step:
        value = -(-value // step) * step
    return int(value) if is_whole else value


def _string(schema: Json) -> str:
    if (known := _FORMATS.get(str(schema.get("format")))) is not None:
        return known
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if pattern := schema.get("pattern"):
        fitting = (each for each in _SAMPLES if re.search(pattern, each) and least <= len(each))
        if (found := next(fitting, None)) is not None:
            return found
    return WORD.ljust(least, "x")[:most]
