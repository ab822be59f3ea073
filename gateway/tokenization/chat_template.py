"""Chat templates: the values that vLLM hands to a model's jinja template, and the rendered text.

Two halves. `Template` renders as Hugging Face does (the environment is in `jinja_env.py`). `conversation` and
`dump_tools` repeat vLLM's validation and message parsing of a request. Order matters there: templates print
tools and calls with `tojson`, and a key in another place is another prompt. Read in vLLM 0.32 and
transformers 5.19; tests/vllm/test_tokenize.py compares with the engine.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import jinja2
from jinja2 import meta, nodes

from gateway.core.decode_errors import UNREADABLE
from gateway.core.multimodal import MEDIA
from gateway.tokenization.jinja_env import ENVIRONMENT
from gateway.tokenization.nested_json import excess
from gateway.tokenization.sandbox.budgeted_code import Unpriced
from gateway.tokenization.sandbox.render_budget import OverBudget, RenderContext

Message: TypeAlias = dict[str, Any]
ContentFormat: TypeAlias = Literal["string", "openai"]

# Parameters of HF's apply_chat_template: it keeps these for itself, so a template never sees them.
HF_PARAMETERS: Final = {
    "conversation",
    "chat_template",
    "continue_final_message",
    "tokenize",
    "padding",
    "truncation",
} | {"max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"}
# HF marks the end of the message to continue with this, then cuts the rendered text there. The same
# words, because a template may trim, measure or escape what it is given.
CONTINUE_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
# Characters of a template's own error that are kept.
MAX_REASON_CHARS: Final = 300
# vLLM drops this first line of a system text: Claude Code changes it with each request.
BILLING_HEADER: Final = "x-anthropic-billing-header"
# Where the text of a part is, by type. Any other type is media, or refused by the engine.
TEXT_FIELD: Final = {"text": "text", "refusal": "refusal", "thinking": "thinking"}
# A message of these roles with nothing but text is passed on as it is.
PLAIN_ROLES: Final[tuple[str, ...]] = ("user", "assistant")
MAX_PARTS: Final = 4096
"""Messages of a prompt, and parts and calls of all of them: some 40 ms of a thread, and more than any agent
has."""
PARTS: Final = ("content", "tool_calls", "summary", "output")
"""Fields of a message, an item or a part that hold lists of parts."""
# Fields of a part that vLLM knows: only the others reach an "openai" template beside the text.
PART_FIELDS: Final = (
    {"type", "text", "refusal", "thinking", "closed", "name", "data", "uuid", "file"}
    | {"prompt_cache_breakpoint", "image_url", "image_pil", "image_embeds"}
    | {"audio_url", "audio_embeds", "input_audio", "video_url", "video_embeds"}
)


class PromptError(ValueError):
    """The prompt cannot be rendered: the template raised, or a field has a shape that engines reject.

    `foreign` names the exception of foreign code (a template above all) if the message repeats its words:
    these may quote the prompt, and are not for a log.
    """

    def __init__(self, message: str, foreign: str = "") -> None:
        super().__init__(message)
        self.foreign = foreign


class TooLong(PromptError):
    """The prompt has more tokens than its model takes; `num_tokens` is a lower bound of its tokens.

    Defined beside PromptError: compiled code takes no subclass of it from a module that is not compiled.
    """

    def __init__(self, num_tokens: int) -> None:
        super().__init__("the prompt has more tokens than the model accepts")
        self.num_tokens = num_tokens


class NotRendered(PromptError):
    """The engine does not render this model by a template, so that its workers have to tokenize."""


class MediaError(PromptError):
    """The prompt contains media; the tokens before the first can be rendered (`core/multimodal.py`)."""


class TooCostly(ValueError):
    """A rendering takes more time or memory than it may (`sandbox/render_budget.py`).

    It is no kind of PromptError: what tries templates must not take it for one more probe that fails.

    `is_fault`: more than any honest template may need, so that the gateway must not render the template.
    `is_inline`: a thread may take longer.
    """

    def __init__(self, reason: str, is_fault: bool, is_inline: bool) -> None:
        super().__init__(reason)
        self.is_fault, self.is_inline = is_fault, is_inline


class NotContinued(ValueError):
    """A large chat was read on the event loop for its new messages only, and cannot be continued by them: a
    thread has to render the whole.

    It is no kind of PromptError, so that no renderer counts as failed.
    """


class Template:
    """Compiled chat template. Raises PromptError when it does not compile, NotRendered for one that is too
    large or has a construct that is not rendered here."""

    def __init__(self, source: str) -> None:
        try:
            compiled = ENVIRONMENT.from_string(source)
            self.tree = ENVIRONMENT.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(self.tree))
            self.source = source
            self.content_format = self.find_format()
        except Unpriced as exc:
            raise NotRendered(f"chat template: {exc}") from exc
        except jinja2.TemplateError as exc:
            raise PromptError(f"chat template does not compile: {_words(exc)}") from exc
        except RecursionError as exc:
            raise NotRendered("chat template: it is nested too deeply") from exc
        except (SyntaxError, MemoryError, OverflowError, ValueError) as exc:  # of Python's compiler
            reason = f"chat template does not compile: {type(exc).__name__}, {_words(exc)}"
            raise PromptError(reason) from exc
        self._root = compiled.root_render_func
        self._globals = dict(compiled.globals)
        self.num_units = 0  # of the last rendering, by any thread; about
        # vLLM looks for the quoted word, not for a role test.
        self.knows_developer = '"developer"' in source or "'developer'" in source

    def __repr__(self) -> str:
        return f"Template({self.content_format}, {len(self.source)} characters)"

    def find_format(self) -> ContentFormat:
        return content_format(self.tree)

    def conversation(self, messages: object) -> list[Message]:
        """Messages of a request as this template sees them. Raises PromptError, naming the message and the
        field."""
        return conversation(messages, self.content_format)

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any], now: datetime) -> str:
        """The prompt's text. `variables` are what the template sees besides messages; `now` is local. Raises
        PromptError, or TooCostly."""
        if not messages:
            raise PromptError("messages is empty")
        if not self.knows_developer and any([message["role"] == "developer" for message in messages]):
            messages = _developer_as_system(messages)
        scope = {**self._globals, "strftime_now": now.strftime, **variables, "messages": messages}
        context = RenderContext(ENVIRONMENT, scope, None, None)
        try:  # what jinja's own `render` does, without copying the variables again
            text: str = "".join(self._root(context))
        except OverBudget as exc:
            raise TooCostly(f"chat template: {exc}", exc.is_fault, exc.is_inline) from exc
        except Exception as exc:  # noqa: BLE001 - a template is a program from elsewhere, it can raise anything
            raise PromptError(f"chat template: {_words(exc)}", type(exc).__name__) from exc
        self.num_units = context.num_units
        return text

    def render_open(self, messages: Sequence[Message], variables: Mapping[str, Any], now: datetime) -> str:
        """The text up to the end of the last message's content, for the model to continue it."""
        if variables.get("add_generation_prompt"):
            raise PromptError("continue_final_message and add_generation_prompt exclude each other")
        if "content" not in self.source:
            raise PromptError("continue_final_message: the chat template does not use content")
        opened, final = _tag_end(messages)
        text = self.render(opened, variables, now)
        at = text.rfind(CONTINUE_TAG.strip())
        if at < 0 or final.strip() not in text:
            raise PromptError("continue_final_message: the chat template drops the last message")
        #  The tag's own last space shows whether the template trims its values.
        return text[:at] if text.startswith(CONTINUE_TAG, at) else text[:at].rstrip()


def _words(exc: BaseException) -> str:
    """Words of an error of which a template may have chosen the length, in one line."""
    return " ".join(str(exc)[:MAX_REASON_CHARS].split())


def _tag_end(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """Messages with the tag after the last one's text, and that text."""
    if not messages or (content := messages[-1]["content"]) is None:
        raise PromptError("continue_final_message: no content to continue")
    if isinstance(content, str):
        return [*messages[:-1], {**messages[-1], "content": content + CONTINUE_TAG}], content
    for i in range(len(content) - 1, -1, -1):
        if "text" in content[i]:
            final: str = content[i]["text"]
            parts = [*content[:i], {**content[i], "text": final + CONTINUE_TAG}, *content[i + 1 :]]
            return [*messages[:-1], {**messages[-1], "content": parts}], final
    raise PromptError("continue_final_message: no text to continue")


def _developer_as_system(messages: Sequence[Message]) -> list[Message]:
    """Messages for templates without the developer role: system messages, merged into one at the start."""
    renamed: list[Message] = []
    for message in messages:
        if message["role"] == "developer":
            message = {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}
        renamed.append(message)
    systems = [i for i, message in enumerate(renamed) if message["role"] == "system"]
    if systems == [0]:
        return renamed
    texts = [_plain(renamed[i]["content"]) for i in systems]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _plain(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


# --- messages and tools, as vLLM passes them on ---


def conversation(messages: object, form: ContentFormat) -> list[Message]:
    """Messages as the template sees them. Raises PromptError, naming the message and the field."""
    if not isinstance(messages, list):
        raise PromptError("messages is not a list")
    check_nested(messages)
    return [_plain_message(message, form) or _message(message, i, form) for i, message in enumerate(messages)]


def _plain_message(message: object, form: ContentFormat) -> Message | None:
    """Short path for a message of a role and a text, which stays as it is; None for others."""
    if form == "string" and type(message) is dict and len(message) == 2:
        role, content = message.get("role"), message.get("content")
        if type(content) is str and role in PLAIN_ROLES:
            return {"role": role, "content": content}
    return None


def _message(message: object, number: int, form: ContentFormat) -> Message:
    where = f"messages[{number}]"
    if not isinstance(message, Mapping) or not isinstance(role := message.get("role"), str):
        raise PromptError(f"{where}: no role")
    # Keys in the order in which vLLM sets them, for templates that print a whole message.
    result: Message = {"role": role, "content": _content(role, message.get("content"), where, form)}
    if role == "assistant":
        if calls := message.get("tool_calls"):
            result["tool_calls"] = _tool_calls(calls, where)
        if (reasoning := _reasoning(message)) is not None:
            result["reasoning"] = result["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        result["tool_call_id"] = message["tool_call_id"]
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            result[key] = message[key]
    if role == "developer":
        tools: Any = message.get("tools")
        result["tools"] = tools if tools is None else [_developer_tool(tool, where) for tool in tools]
    return result


def _reasoning(message: Mapping[str, Any]) -> Any:
    reasoning = message.get("reasoning")
    return message.get("reasoning_content") if reasoning is None else reasoning


def _content(role: str, content: object, where: str, form: ContentFormat) -> str | list[dict[str, Any]]:
    if isinstance(content, str) and form == "string" and role != "system":
        return content
    given = [] if content is None else [content] if isinstance(content, str) else content
    if not isinstance(given, list):
        raise PromptError(f"{where}: content is neither text nor a list of parts")
    parts = [_part(part, where) for part in given]
    if role == "system":
        parts = [kept for part in parts if (kept := _without_billing(part)) is not None]
    texts = [part.get("text", part.get("name", "")) for part in parts]
    if form == "string":
        return "\n".join(text for text in texts if text)  # empty parts leave no empty line
    if role == "tool" and all(part["type"] == "text" for part in parts):
        return "\n".join(texts)  # most templates print a tool's answer without looking for parts
    return parts


def _part(part: object, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise PromptError(f"{where}: a content part is neither text nor an object")
    kind = part.get("type")
    if kind == "tool_reference":
        return {"type": kind, "name": part.get("name")}
    text = part.get(TEXT_FIELD.get(str(kind), ""))
    if not isinstance(text, str):
        if str(kind) in MEDIA:
            raise MediaError(f"{where}: a content part of type {kind!r} is not text")
        called = f"of type {kind!r}" if str(kind) in PART_FIELDS else "of unknown type"
        raise PromptError(f"{where}: a content part {called} is not text")
    extra = {key: value for key, value in part.items() if key not in PART_FIELDS}
    return {"type": "text", "text": text, **extra}


def _without_billing(part: dict[str, Any]) -> dict[str, Any] | None:
    text = part.get("text")
    if not isinstance(text, str) or not text.startswith(BILLING_HEADER):
        return part
    rest = text.partition("\n")[2]
    return {**part, "text": rest} if rest else None


def _tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise PromptError(f"{where}: tool_calls is not a list")
    result = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or call.get("type", "function") != "function":
            raise PromptError(f"{where}: a tool call is not a function call")
        function = {**function, "arguments": arguments_of(function.get("arguments"))}
        call = {**call, "function": _ordered(function, ("arguments", "name"))}
        result.append(_ordered(call, ("id", "function", "type")))
    return result


def check_parts(messages: Sequence[object]) -> None:
    """Raise PromptError for more messages, or more parts and calls in all of them, than are read."""
    if len(messages) > MAX_PARTS:
        raise PromptError(f"more than {MAX_PARTS:,} messages")
    num, rest = 0, list(messages)
    for each in rest:  # it grows by what the messages hold
        if type(each) is not dict:
            continue
        for field in PARTS:
            found = each.get(field)
            if type(found) is list:
                num += len(found)
                if num > MAX_PARTS:
                    raise PromptError(f"more than {MAX_PARTS:,} parts of messages")
                rest += found


def check_nested(messages: Sequence[object]) -> None:
    """Raise PromptError for too many messages or parts, and where the arguments of tool calls, which are JSON
    texts, hold too much."""
    check_parts(messages)
    has_calls = any([type(message) is dict and "tool_calls" in message for message in messages])
    if has_calls and (reason := excess(messages)):
        raise PromptError(reason)


def arguments_of(given: object) -> dict[str, Any]:
    """Arguments of a tool call as an object: they come as JSON text, and vLLM replaces invalid ones by {}."""
    if isinstance(given, str) and given:
        try:
            given = json.loads(given)
        except UNREADABLE:
            return {}
    return given if isinstance(given, dict) else {}


def _ordered(given: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    """Declared fields in the order of their declaration, then the rest, as vLLM's validation leaves them."""
    return {key: given[key] for key in first if key in given} | dict(given)


def _developer_tool(tool: object, where: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or not isinstance(function := tool.get("function"), Mapping):
        raise PromptError(f"{where}: a tool has no function")
    function = _ordered(function, ("name", "description", "parameters", "strict"))
    return _ordered({**tool, "function": function}, ("function", "type"))


def dump_tools(tools: object) -> list[dict[str, Any]] | None:
    """Tools after vLLM's validation: unknown fields dropped, description and parameters always there."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise PromptError("tools is not a list")
    return [_dump_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _dump_tool(tool: object, where: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(function, Mapping):
        raise PromptError(f"{where}: no function")
    if not isinstance(function.get("name"), str) or tool.get("type", "function") != "function":
        raise PromptError(f"{where}: not a function with a name")
    dumped = {key: function.get(key) for key in ("name", "description", "parameters")}
    result = {"type": "function", "function": dumped}
    deferred = tool.get("defer_loading")
    inner = function.get("defer_loading")
    for target, key, value in (
        (dumped, "strict", function.get("strict")),
        (dumped, "defer_loading", deferred if inner is None else inner),
        (result, "defer_loading", deferred),
    ):
        if value is not None:
            target[key] = value
    return result


# --- does the template read content as text or as parts? ---


def content_format(tree: nodes.Template) -> ContentFormat:
    """Content format of a template: "openai" if it loops over a message's content, by vLLM's own rules."""
    try:
        return "openai" if any(True for _ in _content_loops(tree)) else "string"
    except _Unreadable:
        return "string"


class _Unreadable(Exception):
    """vLLM gives up on a template that unpacks messages or content in an assignment or a loop."""


def reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """True if `node` is the variable `name` (or its `key`), perhaps filtered, tested or sliced."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is None:
        return isinstance(node, nodes.Name) and node.name == name and node.ctx == "load"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _reads_name(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _reads_name(node.node, name)


def _reads_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name and node.ctx == "load"


def _target(node: nodes.Node) -> str:
    if not isinstance(node, nodes.Name):
        raise _Unreadable
    return node.name


def _message_names(tree: nodes.Template) -> set[str]:
    """Loop variables that stand for a message."""
    lists, todo = {"messages"}, ["messages"]
    while todo:
        name = todo.pop()
        found = {_target(each.target) for each in tree.find_all(nodes.Assign) if reads(each.node, name)}
        todo += found - lists
        lists |= found
    loops = (loop for loop in tree.find_all(nodes.For) if any(reads(loop.iter, name) for name in lists))
    return {_target(loop.target) for loop in loops}


def _content_loops(tree: nodes.Template) -> Iterator[str]:
    """Targets of loops over a message's content: read off the message, named so, or a macro's parameter."""
    names = _message_names(tree)
    parameters: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        receives = _content_parameters(tree, macro, names)
        for loop in macro.find_all(nodes.For):
            parameters[id(loop)] = receives or parameters.get(id(loop), set())
    for loop in tree.find_all(nodes.For):
        named = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
        # Inside a macro "content" is the macro's own name for something.
        wanted = parameters.get(id(loop), {"content"})
        if named in wanted or any(reads(loop.iter, name, "content") for name in names):
            yield _target(loop.target)


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, names: set[str]) -> set[str]:
    """Parameters of `macro` that some call fills with a message's content."""
    declared = [arg.name for arg in macro.args]
    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        given = [*zip(declared, call.args, strict=False)]
        given += [(each.key, each.value) for each in call.kwargs if each.key in declared]
        found |= {key for key, value in given if any(reads(value, name, "content") for name in names)}
    return found
