"""Tokens assembled from cached text, compared with rendering and encoding the whole."""

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from gateway.core.blocks import Tokens
from gateway.core.errors import InvalidRequest
from gateway.core.request import InferenceRequest
from gateway.core.token_runs import TokenRunCache
from gateway.requests.parsing import parse_request
from gateway.tokenization.chat_template import NotContinued, Template
from gateway.tokenization.conversation_cache import MAX_TRIES
from gateway.tokenization.prompt_encoder import CHECK_EVERY, MAX_WHOLE_BYTES, PromptEncoder, PromptError
from gateway.tokenization.proof_task import prove_here
from gateway.tokenization.sandbox.render_budget import hurry
from tests import ROOT
from tests.support.corpus import TEMPLATES, Body, answer, assistant, call, system, text_part, user

CHAT = "/v1/chat/completions"
TOKENIZER = ROOT / "engines" / "sim" / "tokenizer"
NOW = datetime(2024, 7, 26, 23, 0)
NAMES = ("chatml", "llama3", "qwen3", "r1", "gemma", "parts", "late_tools", "dump")
# Steps of the state machine in one example of each template; the examples come from the environment.
STEPS = 50
EXAMPLES = int(os.environ.get("KVGATE_EXAMPLES", "4"))

# Words that templates look for are rare: with one of them, a conversation may have no cut points.
MARKED = ("a <think>why</think> b", "</think>x", "<think>", "<tool_response>", "{{ x }}")
MARKED += ("<tool_response>\nx\n</tool_response>", "<|im_end|>\n<|im_start|>user\n")
TEXTS = 10 * ("", "Hello", " b \n", "naïve 漢字 😀", "long " * 40) + MARKED
ARGUMENTS = ("{}", '{"a": [1, "<think>"]}', "no json")
TOOLS = [{"type": "function", "function": {"name": name, "description": "d"}} for name in ("f", "g")]
KWARGS: list[Body] = [{}, {"enable_thinking": False}, {"enable_thinking": True}, {"date_string": "1 May"}]
EXTRA: list[Body] = [
    {"add_generation_prompt": False},
    {"continue_final_message": True, "add_generation_prompt": False},
    {"documents": [{"title": "t"}]},
    {"truncate_prompt_tokens": 9},
    {"add_special_tokens": True},
    {"reasoning_effort": "none"},
    {"tools": []},
]


def load(directory: Path, template: str) -> PromptEncoder:
    """Bundled tokenizer with the special tokens that the templates print."""
    contents = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>"]
    added = {
        str(8192 + i): {"content": content, "special": True, "normalized": False}
        for i, content in enumerate(contents)
    }
    source = (TEMPLATES / f"{template}.jinja").read_text("utf-8")
    config = {"chat_template": source, "eos_token": "<|im_end|>", "bos_token": "<|endoftext|>"}
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_bytes((TOKENIZER / "tokenizer.json").read_bytes())
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"added_tokens_decoder": added}))
    return PromptEncoder.load(directory, max_model_len=8192)


@pytest.fixture(scope="module", params=NAMES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    return load(tmp_path_factory.mktemp("model") / request.param, request.param)


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    return load(tmp_path_factory.mktemp("model") / "chatml", "chatml")


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    return load(tmp_path_factory.mktemp("model") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def plain() -> PromptEncoder:
    return PromptEncoder.load(TOKENIZER)


def never(template: str) -> None:
    raise AssertionError(f"a check failed: {template}")


def parsed(body: Body, runs: TokenRunCache) -> InferenceRequest:
    return parse_request(CHAT, msgspec.json.encode({"model": "m", **body}), runs)


def short(prompts: PromptEncoder, body: Body, runs: TokenRunCache, now: datetime = NOW) -> "Tokens | None":
    try:
        return prompts.tokens(parsed(body, runs), now).tokens
    except PromptError:
        return None


def full(prompts: PromptEncoder, body: Body, now: datetime = NOW) -> "Tokens | None":
    try:
        return prompts.chat(body, now)
    except PromptError:
        return None


# the oracle --------------------------------------------------------------------------------------

texts = st.sampled_from(TEXTS)
contents = st.one_of(texts, texts, texts.map(lambda text: [text_part(text), text_part("p")]))
reasons = st.sampled_from([{}, {}, *3 * [{"reasoning_content": "because\n"}], {"reasoning": "x </think> y"}])
calls = st.builds(
    lambda name, text: call(name, text), st.sampled_from(["f", "g"]), st.sampled_from(ARGUMENTS)
)
questions = contents.map(user)
answers = st.builds(lambda content, reason: assistant(content, **reason), contents, reasons)
steps = st.builds(
    lambda made, reason, text: [assistant(text, tool_calls=made, **reason), *(answer("r\n") for _ in made)],
    st.lists(calls, min_size=1, max_size=2),
    reasons,
    st.one_of(st.none(), texts),
)
odd = st.sampled_from(
    [
        system("late orders"),
        {"role": "developer", "content": "dev"},
        user("named", name="n"),
        user([text_part("cached", cache_control={"type": "ephemeral"})]),
        user([{"type": "image_url", "image_url": {"url": "x"}}]),
        answer("stray result"),
        {"role": "critic", "content": "?"},
        assistant(None),
        user(None),
    ]
)


class Talks(RuleBasedStateMachine):
    """Random conversations that grow, branch, are edited, and change their settings; each step compares
    tokens."""

    prompts: PromptEncoder
    max_bytes: int

    def __init__(self) -> None:
        super().__init__()
        self.runs = self.prompts._conversations._runs = TokenRunCache(self.max_bytes)
        self.now = NOW
        self.bodies: list[Body] = []

    @initialize(
        lead=st.sampled_from([None, "", "You are helpful.", " be brief ", "  <think> "]),
        tools=st.booleans(),
        turns=st.lists(st.tuples(questions, st.lists(steps, max_size=2), answers), max_size=4),
        question=questions,
    )
    def begin(self, lead: str | None, tools: bool, turns: list[Any], question: Body) -> None:
        body: Body = {"messages": [system(lead)] if lead is not None else []}
        for asked, made, reply in turns:
            body["messages"] += [asked, *(message for step in made for message in step), reply]
        body["messages"].append(question)
        self.bodies = [body | ({"tools": TOOLS} if tools else {})]
        self._check(body)

    @rule(which=st.integers(0, 7), question=questions)
    def ask(self, which: int, question: Body) -> None:
        self._grow(which, [question])

    @rule(which=st.integers(0, 7), reply=answers, question=questions)
    def turn(self, which: int, reply: Body, question: Body) -> None:
        self._grow(which, [reply, question])

    @rule(which=st.integers(0, 7), step=steps)
    def step(self, which: int, step: list[Body]) -> None:
        self._grow(which, step)

    @rule(which=st.integers(0, 7), message=odd)
    def surprise(self, which: int, message: Body) -> None:
        self._grow(which, [message])

    @rule(which=st.integers(0, 7), at=st.integers(0, 30), message=st.one_of(questions, answers))
    def edit(self, which: int, at: int, message: Body) -> None:
        body = deepcopy(self._body(which))
        if body["messages"]:
            body["messages"][at % len(body["messages"])] = message
        self._check(body)

    @rule(which=st.integers(0, 7), at=st.integers(0, 30))
    def branch(self, which: int, at: int) -> None:
        body = deepcopy(self._body(which))
        del body["messages"][at:]
        self.bodies = [*self.bodies[-6:], body]
        self._check(body)

    @rule(which=st.integers(0, 7), kwargs=st.sampled_from(KWARGS))
    def switch(self, which: int, kwargs: Body) -> None:
        self._body(which)["chat_template_kwargs"] = kwargs
        self._check(self._body(which))

    @rule(which=st.integers(0, 7), extra=st.sampled_from(EXTRA))
    def once(self, which: int, extra: Body) -> None:
        self._check({**self._body(which), **extra})

    @rule(which=st.integers(0, 7), number=st.integers(0, 2))
    def equip(self, which: int, number: int) -> None:
        self._body(which)["tools"] = TOOLS[:number] or None
        self._check(self._body(which))

    @rule()
    def sleep(self) -> None:
        self.now += timedelta(hours=5)

    def _body(self, which: int) -> Body:
        return self.bodies[which % len(self.bodies)]

    def _grow(self, which: int, messages: list[Body]) -> None:
        body = self._body(which)
        if len(body["messages"]) > 24:
            del body["messages"][4:]
        before = body["messages"]
        body["messages"] = [*before, *messages]
        if not self._check(body):
            body["messages"] = before  # rejected, as all that follows would be

    def _check(self, body: Body) -> bool:
        with suppress(PromptError):
            setting = self.prompts._setting(body, self.now)
            prove_here(self.prompts._tokenizer.cuts, [setting] if setting is not None else [])
        expected = full(self.prompts, body, self.now)
        for _ in range(2):  # the first run stores and the second one reads
            assert short(self.prompts, body, self.runs, self.now) == expected
        assert self.runs.num_bytes <= self.max_bytes
        return expected is not None


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [1 << 20, 6_000], ids=["roomy", "tiny"])
def test_cached_text_changes_no_token(loaded: PromptEncoder, max_bytes: int) -> None:
    loaded.remember(TokenRunCache(), NOW, never)
    machine = type("Machine", (Talks,), {"prompts": loaded, "max_bytes": max_bytes})
    profile = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=EXAMPLES < 100,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=profile)  # type: ignore[no-untyped-call]


# cached text --------------------------------------------------------------------------------------


def talk(num_turns: int, seed: int = 0) -> list[Body]:
    rng = random.Random(seed)
    words = lambda n: " ".join(rng.choices(["alpha", "beta", "gamma", "delta\n"], k=n))  # noqa: E731
    turns = [each for _ in range(num_turns) for each in (user(words(20)), assistant(words(40)))]
    return [system("Be brief."), *turns, user(words(10))]


def rendered(monkeypatch: pytest.MonkeyPatch, prompts: PromptEncoder) -> list[int]:
    """Number of messages of each rendering from now on."""
    (template,) = prompts._templates.values()
    counts: list[int] = []
    render = type(template).render

    def counting(self: Any, messages: Any, *args: Any) -> str:
        counts.append(len(messages))
        return render(self, messages, *args)

    monkeypatch.setattr(type(template), "render", counting)
    return counts


MANY_TURNS = 17
"""Turns after which no prompt of their kinds is checked for as many again."""


def test_a_turn_renders_its_new_messages_only(chatml: PromptEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = TokenRunCache()
    chatml.remember(runs, NOW, never)
    messages = talk(50)
    short(chatml, {"messages": messages}, runs)
    for _ in range(MANY_TURNS):
        messages = [*messages, assistant("so"), user("or")]
        short(chatml, {"messages": messages}, runs)
    counts = rendered(monkeypatch, chatml)
    for _ in range(3):
        messages = [*messages, assistant("so"), user("and?")]
        short(chatml, {"messages": messages}, runs)
    assert max(counts) <= 3 + 3  # the stub, a question, its answer and the next
    assert runs.num_bytes < 60 * (4 * len(chatml.chat({"messages": messages}, NOW)) / 50 + 600)


def test_few_known_conversations_are_tried(chatml: PromptEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try decodes all that follows."""
    runs = TokenRunCache()
    chatml.remember(runs, NOW, never)
    messages = talk(20)
    for end in range(2, len(messages) + 1):
        short(chatml, {"messages": messages[:end]}, runs)
    (template,) = chatml._templates.values()
    conversation, counts = type(template).conversation, []

    def counting(self: Template, given: Any) -> Any:
        counts.append(len(given))
        return conversation(self, given)

    monkeypatch.setattr(type(template), "conversation", counting)
    body = {"messages": [*messages[:-1], user("<|im_start|>")]}
    assert short(chatml, body, runs) is not None
    assert len(counts) <= MAX_TRIES + 1  # and the whole


def test_a_tool_loop_renders_its_last_step_only(
    qwen3: PromptEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = TokenRunCache()
    qwen3.remember(runs, NOW, never)
    body: Body = {"messages": [system("s"), user("go")], "tools": TOOLS}
    tool = assistant(None, reasoning="now", tool_calls=[call("f", "{}")])
    for _ in range(4):
        body["messages"] += [tool, answer("r")]
        short(qwen3, body, runs)
    counts = rendered(monkeypatch, qwen3)
    body["messages"] += [tool, answer("r")]
    assert short(qwen3, body, runs) is not None
    assert max(counts) <= 4 + 4
    body["messages"] += [assistant("done"), user("next")]  # drops the earlier reasoning
    assert short(qwen3, body, runs) == full(qwen3, body)


def test_a_system_message_is_shared_by_conversations(
    chatml: PromptEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = TokenRunCache()
    chatml.remember(runs, NOW, never)
    lead = system("shared " * 50)
    short(chatml, {"messages": [lead, user("a")]}, runs)
    request = parsed({"messages": [lead, user("b")]}, runs)
    assert request.messages and request.messages.num_known == 1
    counts = rendered(monkeypatch, chatml)
    assert chatml.tokens(request, NOW).tokens == full(chatml, {"messages": [lead, user("b")]})
    assert counts[0] == 2


def test_cut_points_cost_no_more_than_the_whole_once_more(
    chatml: PromptEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly all of this chat is behind each of its cut points."""
    runs = TokenRunCache()
    chatml.remember(runs, NOW, never)
    step = [assistant(None, tool_calls=[call("f", "{}")]), answer("r")]
    body = {"messages": [user("a"), assistant("b"), user("c"), *step, *100 * [assistant("d")]]}
    counts = rendered(monkeypatch, chatml)
    assert short(chatml, body, runs) is not None
    assert max(counts) > 100 and sum(counts) < 2.2 * len(body["messages"])


def test_a_cut_point_is_valid_for_the_role_it_was_proved_for(qwen3: PromptEncoder) -> None:
    runs = TokenRunCache()
    qwen3.remember(runs, NOW, never)
    short(qwen3, {"messages": [assistant("a"), user("b")]}, runs)
    body = {"messages": [assistant("a"), assistant("b")]}
    assert short(qwen3, body, runs) == full(qwen3, body)


def test_text_changed_by_later_messages_is_not_cached(qwen3: PromptEncoder) -> None:
    runs = TokenRunCache()
    qwen3.remember(runs, NOW, never)
    tool = assistant(None, reasoning="why", tool_calls=[call("f", "{}")])
    loop = [user("go"), tool, answer("r"), tool, answer("r")]
    short(qwen3, {"messages": [*loop, user("next")]}, runs)  # drops the reasoning of the loop
    assert short(qwen3, {"messages": loop}, runs) == full(qwen3, {"messages": loop})


def test_another_day_is_another_text(tmp_path: Path) -> None:
    prompts, runs = load(tmp_path, "llama3"), TokenRunCache()
    prompts.remember(runs, NOW, never)
    body = {"messages": talk(3)}
    short(prompts, body, runs)
    for days in (0, 1, 2):
        now = NOW + timedelta(days=days)
        prompts.remember(runs, now, never)
        assert short(prompts, body, runs, now) == full(prompts, body, now)


def test_without_memory_the_whole_is_rendered(tmp_path: Path) -> None:
    prompts = load(tmp_path, "chatml")
    body = {"messages": talk(2)}
    assert short(prompts, body, TokenRunCache()) == full(prompts, body)


def test_an_unproved_setting_is_proved_while_requests_are_rendered_whole(chatml: PromptEncoder) -> None:
    runs = TokenRunCache()
    chatml.remember(runs, NOW, never)
    body = {"messages": talk(2), "add_generation_prompt": False}
    num = 0
    while not len(runs):
        assert short(chatml, body, runs) == full(chatml, body)
        num += 1
    assert 5 < num < 300


# a wrong proof ------------------------------------------------------------------------------------

# No probe begins and ends with a text of these letters.
LIAR = """{#- NAME -#}
{%- if messages[0].content[:2] > 'zy' and messages[-1].content[:2] > 'zy' %}{{ 'late' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}{% endfor %}"""


def liar(name: str) -> tuple[PromptEncoder, TokenRunCache, list[str]]:
    """Encoder of a template with a wrong proof, its cache, and the mismatches that it reports."""
    prompts, runs = PromptEncoder.load(TOKENIZER, LIAR.replace("NAME", name)), TokenRunCache()
    mismatches: list[str] = []
    prompts.remember(runs, NOW, mismatches.append)
    return prompts, runs, mismatches


def ended(text: str, role: str = "user") -> Body:
    return {"messages": [user("zzz"), assistant("a"), {"role": role, "content": text}]}


def test_a_wrong_cut_is_found_by_the_first_prompt_that_relies_on_it() -> None:
    prompts, runs, mismatches = liar("first")
    short(prompts, ended("b"), runs)
    assert mismatches == [] and short(prompts, ended("zz"), runs) == full(prompts, ended("zz"))
    assert len(mismatches) == 1 and "Template" in mismatches[0]
    for text in ("zz", "zzz", "b") * 3:
        assert short(prompts, ended(text), runs) == full(prompts, ended(text))
    assert len(mismatches) == 1


def test_a_wrong_cut_among_right_ones_is_found_soon_and_remembered() -> None:
    prompts, runs, mismatches = liar("soon")
    for _ in range(5):  # their use is tried at the first, the second and the fourth time
        short(prompts, ended("b"), runs)
    wrong = 0
    for _ in range(9):
        wrong += short(prompts, ended("zz"), runs) != full(prompts, ended("zz"))
    assert wrong == 3 and len(mismatches) == 1  # the eighth
    again, runs, mismatches = liar("soon")  # as after a reload of the configuration
    described = again.describe()["templates"][0]
    assert described["mode"] == "whole" and described["reason"].startswith("a check failed")
    for _ in range(9):
        assert short(again, ended("zz"), runs) == full(again, ended("zz"))
    assert mismatches == []


def test_one_prompt_in_some_hundred_is_checked_in_any_case() -> None:
    prompts, runs, mismatches = liar("any")
    for _ in range(CHECK_EVERY - 2):
        short(prompts, ended("b"), runs)
    assert prompts._num_known == CHECK_EVERY - 3  # the first one was rendered whole
    wrong = 0
    while not mismatches:
        wrong += short(prompts, ended("zz"), runs) != full(prompts, ended("zz"))
        assert wrong <= 3
    assert wrong == 2


def test_a_check_of_a_large_chat_is_left_to_a_thread() -> None:
    prompts, runs, mismatches = liar("large")
    body = ended("b")
    body["messages"][0]["content"] += " word" * (MAX_WHOLE_BYTES // 4)
    short(prompts, body, runs)
    body["messages"][-1]["content"] = "zz"
    request = parsed(body, runs)
    hurry(True)
    try:
        with pytest.raises(NotContinued):
            prompts.tokens(request, NOW)
    finally:
        hurry(False)
    assert mismatches == []
    request.is_whole = True
    assert prompts.tokens(request, NOW).tokens == full(prompts, body) and len(mismatches) == 1


# Templates that count, look behind or ahead: the tokens are exact in any case.
STRANGE = (
    "",
    "{{ messages | length }}",
    "{{ messages | length % 2 }}",
    "{{ messages[-1].role }}",
    "{{ messages[0].content[:1] }}",
    "{{ messages | map(attribute='role') | unique | join }}",
    "{{ messages[1:] | selectattr('role', 'equalto', 'user') | map(attribute='content') | first }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length > 2 }}",
)
LOOPS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}{% endfor %}",
    "{% for m in messages %}{{ '<|im_start|>' ~ loop.index ~ m.content }}{% endfor %}",
    "{% for m in messages %}{{ '<|im_start|>' ~ loop.revindex ~ m.content }}{% endfor %}",
    "{% for m in messages[-3:] %}{{ '<|im_start|>' ~ m.content }}{% endfor %}",
    "{% for m in messages %}{{ '<|im_start|>' ~ m.content ~ (loop.previtem or m).content }}{% endfor %}",
    "{% for m in messages %}{{ '<|im_start|>' ~ m.content ~ (loop.nextitem or m).role }}{% endfor %}",
)


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("more", STRANGE)
def test_strange_templates(plain: PromptEncoder, more: str, loop: str) -> None:
    for source in (more + loop, loop + more):
        grow(PromptEncoder(plain._tokenizer, {"default": Template(source)}, {}, {}, None))


def test_conversations_that_grow_and_branch(loaded: PromptEncoder) -> None:
    num_known = len(grow(loaded))
    assert loaded._settings and (num_known > 0) == any(
        setting.stubs for setting in loaded._settings._by_variables.values()
    )


def grow(prompts: PromptEncoder) -> TokenRunCache:
    runs = TokenRunCache()
    prompts.remember(runs, NOW, never)
    rng = random.Random(0)
    for seed in range(6):
        messages = talk(5, seed)[seed % 2 :]
        for number in sorted(rng.choices(range(1, len(messages) + 1), k=8)):
            tail = rng.choice([[], [user("other")], [assistant("x"), user("y")], [user("a"), user("b")]])
            body = {"messages": [*messages[:number], *tail]}
            assert short(prompts, body, runs) == full(prompts, body)
    return runs


# threads ------------------------------------------------------------------------------------------


def test_threads_share_the_cache(qwen3: PromptEncoder) -> None:
    runs = TokenRunCache(30_000)
    qwen3.remember(runs, NOW, never)
    talks = [talk(6, seed) for seed in range(6)]
    expected = {(i, n): full(qwen3, {"messages": talks[i][:n]}) for i in range(6) for n in range(1, 14)}

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(150):
            which = rng.randrange(6), rng.randrange(1, 14)
            body = {"messages": talks[which[0]][: which[1]]}
            assert short(qwen3, body, runs) == expected[which]

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert 0 < runs.num_bytes <= 30_000


def test_invalid_messages_behind_known_ones_are_rejected(chatml: PromptEncoder) -> None:
    runs = TokenRunCache()
    chatml.remember(runs, NOW, never)
    messages = talk(3)
    short(chatml, {"messages": messages}, runs)
    for bad in ("text", {"content": "no role"}, {"role": 5}, None):
        with pytest.raises(InvalidRequest, match=r"messages\[9\]"):
            parsed({"messages": [*messages, assistant("a"), bad]}, runs)
    bad_part = {"messages": [*messages, assistant("a"), user(5)]}
    with pytest.raises(PromptError, match=r"messages\[9\]: content"):
        chatml.tokens(parsed(bad_part, runs), NOW)
