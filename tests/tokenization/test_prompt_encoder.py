"""Requests to tokens. The oracle is a real engine: its tokens of the corpus are kept as digests."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import fastokens
import pytest

from gateway.core.token_runs import TokenRunCache
from gateway.tokenization.prompt_encoder import PromptEncoder, PromptError
from tests.support import corpus, shared_tokenizers
from tests.support.corpus import CHATS, COMPLETIONS, REFUSED, TEMPLATE_NAMES, TEMPLATES, Body, digest

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "engines" / "sim" / "tokenizer"
NOW = datetime(2024, 7, 26)
HELLO: Body = {"messages": [{"role": "user", "content": "Hello"}]}
END = "<|im_end|>"


@pytest.fixture(scope="module")
def prompts() -> PromptEncoder:
    return PromptEncoder.load(TOKENIZER, max_model_len=8192)


def load(template: str) -> PromptEncoder:
    return PromptEncoder.load(
        TOKENIZER, (TEMPLATES / f"{template}.jinja").read_text("utf-8"), max_model_len=8192
    )


def ours(prompts: PromptEncoder, body: Body, now: datetime) -> str:
    try:
        return digest(prompts.chat(body, now))
    except PromptError:
        return "-"


# the engine's own answers


@pytest.mark.parametrize("template", TEMPLATE_NAMES)
def test_chats_are_the_engine_s(template: str) -> None:
    golden, prompts = corpus.golden(), load(template)
    assert len(CHATS) + len(COMPLETIONS) >= 200
    reported = list(zip(CHATS, golden.chats[template], strict=True))
    wrong = [body for body, theirs in reported if theirs not in ("?", ours(prompts, body, golden.asked_at))]
    assert [corpus.name_of(body) for body in wrong] == []


def test_completions_are_the_engine_s(prompts: PromptEncoder) -> None:
    reported = zip(COMPLETIONS, corpus.golden().completions, strict=True)
    wrong = [body for body, theirs in reported if corpus.digest_all(prompts.completion(body)) != theirs]
    assert [corpus.name_of(body) for body in wrong] == []


def test_both_encoders_give_the_engine_s_answers(
    monkeypatch: pytest.MonkeyPatch, prompts: PromptEncoder
) -> None:
    assert prompts.kind == "fastokens"
    monkeypatch.setattr(fastokens.Tokenizer, "from_json_str", None)
    with shared_tokenizers.unshared():
        plain = load("chatml")
    assert plain.kind == "tokenizers" and "fastokens does not load it" in plain.why
    for body in CHATS:
        assert ours(plain, body, NOW) == ours(prompts, body, NOW), corpus.name_of(body)


@pytest.mark.parametrize("body", REFUSED, ids=range(len(REFUSED)))
def test_rejected_chats_are_rejected(prompts: PromptEncoder, body: Body) -> None:
    with pytest.raises(PromptError):
        prompts.chat(body, NOW)


def test_the_body_is_not_modified(prompts: PromptEncoder) -> None:
    for body in CHATS:
        before = json.dumps(body)
        ours(prompts, body, NOW)
        assert json.dumps(body) == before


# fields


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"add_special_tokens": "yes"}, "add_special_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": "3"}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
    ],
)
def test_fields_of_another_shape_are_rejected(prompts: PromptEncoder, fields: Body, reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        prompts.chat({**HELLO, **fields}, NOW)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": None},
        {"prompt": 5},
        {"prompt": []},
        {"prompt": {"a": 1}},
        {"prompt": ["a", [1]]},
        {"prompt": [1, "a"]},
        {"prompt": [1, -1]},
        {"prompt": [2**32]},
        {"prompt": [[1.5]]},
        {"prompt": "a", "suffix": "b"},
        {"prompt_embeds": "AA=="},
        {"prompt": "lone \ud800 surrogate"},
    ],
)
def test_completions_of_another_shape_are_rejected(prompts: PromptEncoder, body: Body) -> None:
    with pytest.raises(PromptError):
        prompts.completion(body)


def test_surrogates_are_rejected(prompts: PromptEncoder) -> None:
    with pytest.raises(PromptError, match="Unicode"):
        prompts.chat({"messages": [{"role": "user", "content": "\ud800"}]}, NOW)


def test_truncation_to_the_context_requires_its_length() -> None:
    with pytest.raises(PromptError, match="length"):
        PromptEncoder.load(TOKENIZER).completion({"prompt": "x", "truncate_prompt_tokens": -1})


@pytest.mark.parametrize(
    ("fields", "length"),
    [({}, 15), ({"max_tokens": 0}, 16), ({"max_tokens": None}, 16), ({"max_tokens": 1}, 15)],
)
def test_one_token_is_reserved_for_output(fields: Body, length: int) -> None:
    prompts = PromptEncoder.load(TOKENIZER, max_model_len=16)
    (tokens,) = prompts.completion({"prompt": "word " * 50, "truncate_prompt_tokens": -1, **fields})
    assert len(tokens) == length


def test_a_request_overrides_the_default_kwargs(prompts: PromptEncoder) -> None:
    template = "{{ mode | default('none') }}{{ messages[0].content }}"
    served = PromptEncoder.load(TOKENIZER, template, default_kwargs={"mode": "quick"})
    asked = {**HELLO, "chat_template_kwargs": {"mode": "slow"}}
    assert served.render(HELLO, NOW) == "quickHello"
    assert served.render(asked, NOW) == "slowHello"


def test_the_date_is_given_by_the_caller() -> None:
    prompts = PromptEncoder.load(TOKENIZER, "{{ strftime_now('%Y-%m-%d') }}")
    assert prompts.render(HELLO, NOW) == "2024-07-26"


# the files of a model


def model(directory: Path, **config: Any) -> Path:
    (directory / "tokenizer.json").write_bytes((TOKENIZER / "tokenizer.json").read_bytes())
    base = {"chat_template": "{{ messages[0].content }}", "eos_token": END}
    (directory / "tokenizer_config.json").write_text(json.dumps(base | config), encoding="utf-8")
    return directory


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "default"}, {"name": "tool_use", "template": "tools"}]
    prompts = PromptEncoder.load(model(tmp_path, chat_template=named))
    assert prompts.render(HELLO, NOW) == "default"
    assert prompts.render({**HELLO, "tools": [{"function": {"name": "f"}}]}, NOW) == "tools"
    assert PromptEncoder.load(tmp_path, "tool_use").render(HELLO, NOW) == "tools"


def test_template_files_override_the_configuration(tmp_path: Path) -> None:
    model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    assert PromptEncoder.load(tmp_path).render(HELLO, NOW) == "file"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools", encoding="utf-8")
    assert (
        PromptEncoder.load(tmp_path).render({**HELLO, "tools": [{"function": {"name": "f"}}]}, NOW) == "tools"
    )


@pytest.mark.parametrize("token", ["<s>", {"content": "<s>", "__type": "AddedToken", "lstrip": False}])
def test_special_tokens_are_variables_of_the_template(tmp_path: Path, token: object) -> None:
    config = {"bos_token": token, "image_token": "<img>", "extra_special_tokens": {"audio_token": "<aud>"}}
    template = "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ image_token }}{{ audio_token }}"
    prompts = PromptEncoder.load(model(tmp_path, chat_template=template, **config))
    assert prompts.render(HELLO, NOW) == "<s><|im_end|><img><aud>"
    # They are not in tokenizer.json, so they follow its vocabulary.
    assert all(token >= 8192 for token in prompts.encode("<s><img><aud>", False))


def test_special_tokens_map(tmp_path: Path) -> None:
    model(tmp_path, chat_template="{{ bos_token }}{{ eos_token }}")
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<|endoftext|>"}', encoding="utf-8")
    assert PromptEncoder.load(tmp_path).render(HELLO, NOW) == "<|endoftext|><|im_end|>"


def test_configuration_adds_tokens_and_changes_flags(tmp_path: Path) -> None:
    decoder = {
        "8192": {"content": "<new>", "special": False, "normalized": False},
        "2": {"content": END, "special": True, "rstrip": True},
    }
    prompts = PromptEncoder.load(model(tmp_path, added_tokens_decoder=decoder))
    assert prompts.encode(f"<new>{END}   <new>", False).tolist() == [8192, 2, 8192]


def test_without_a_default_template_chats_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no default chat template"):
        PromptEncoder.load(model(tmp_path, chat_template=[{"name": "rag", "template": "x"}]))


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{", "tokenizer.json: .*truncated"),
        ("tokenizer.json", "[]", "tokenizer.json"),
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("tokenizer_config.json", "{", "tokenizer_config.json: "),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: not an object"),
        ("tokenizer_config.json", None, "no chat template"),
        ("tokenizer_config.json", '{"split_special_tokens": true}', "split_special_tokens"),
        ("chat_template.jinja", "{% if %}", "does not compile"),
        (
            "chat_template.jinja",
            "{{ raise_exception('no user here') }}",
            "plain conversation: .*no user here",
        ),
    ],
)
def test_a_load_error_has_the_reason(tmp_path: Path, file: str, content: str | None, reason: str) -> None:
    model(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content, encoding="utf-8")
    with pytest.raises(PromptError, match=reason) as error:
        PromptEncoder.load(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no such directory"):
        PromptEncoder.load(tmp_path / "nowhere")


# the committed tokenizer


def test_the_committed_configuration_has_the_committed_template() -> None:
    config = json.loads((TOKENIZER / "tokenizer_config.json").read_text("utf-8"))
    assert config["chat_template"] == (TEMPLATES / "chatml.jinja").read_text("utf-8")


def test_the_committed_tokenizer_is_small_and_complete(prompts: PromptEncoder) -> None:
    data = json.loads((TOKENIZER / "tokenizer.json").read_text("utf-8"))
    assert len(data["model"]["vocab"]) == 8192
    assert (TOKENIZER / "tokenizer.json").stat().st_size < 256 * 1024
    assert [prompts.encode(text, False).tolist() for text in ("<|endoftext|>", "<|im_start|>", END)] == [
        [0],
        [1],
        [2],
    ]


def test_the_repr_of_an_encoder_shows_the_state(prompts: PromptEncoder) -> None:
    assert "fastokens" in repr(prompts) and "Template(string" in repr(prompts)


def test_the_description_of_an_encoder_has_its_templates() -> None:
    prompts = PromptEncoder.load(TOKENIZER)
    (template,) = prompts.describe()["templates"]
    assert (template["name"], template["mode"]) == ("default", "whole")
    prompts.remember(TokenRunCache(), NOW, print)
    reported = prompts.describe()
    assert (reported["encoder"], reported["encoder_reason"]) == (prompts.kind, prompts.why)
    assert reported["templates"][0]["mode"] == "incremental"
    assert 0 < reported["segments"]["bytes"] <= reported["segments"]["max_bytes"]
    assert json.dumps(reported)  # plain values


def test_tokens_are_decoded(prompts: PromptEncoder) -> None:
    text = prompts.render(HELLO, NOW)
    assert prompts.decode(prompts.encode(text, False)) == text


# images

TALK: list[Body] = [
    {"role": "system", "content": "You look at pictures."},
    {"role": "user", "content": "May I ask?"},
    {"role": "assistant", "content": "Do."},
]
CAT: Body = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}


@pytest.mark.parametrize("template", ["chatml", "qwen3", "parts"])
@pytest.mark.parametrize("parts", [[CAT], [{"type": "text", "text": "This:"}, CAT], [CAT, CAT]])
@pytest.mark.parametrize("after", [[], [{"role": "assistant", "content": "A cat."}, *HELLO["messages"]]])
def test_tokens_before_the_first_image_are_those_without_images(
    template: str, parts: list[Any], after: list[Any]
) -> None:
    prompts = load(template)
    asked = [*TALK, {"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}, *after]
    tokens = prompts.before_media({"messages": asked}, NOW)
    assert len(tokens) > len(prompts.chat({"messages": TALK[:2], "add_generation_prompt": False}, NOW))
    for shown in ("a", " b", "\n<|image|>"):
        texts = [{"type": "text", "text": shown} if part is CAT else part for part in parts]
        without = prompts.chat({"messages": [*TALK, {"role": "user", "content": texts}, *after]}, NOW)
        if template != "parts":  # the image precedes all text of its message
            without = prompts.chat({"messages": [*TALK, {"role": "user", "content": shown}, *after]}, NOW)
        assert without[: len(tokens)] == tokens


def test_a_template_that_looks_ahead_for_images_has_fewer_tokens_before_them() -> None:
    source = (TEMPLATES / "parts.jinja").read_text("utf-8")
    looks = "{%- if 'image' in messages | string %}{{- '<|im_start|>images\n' }}{% endif %}"
    prompts = PromptEncoder.load(TOKENIZER, looks + source)
    tokens = prompts.before_media({"messages": [*TALK, {"role": "user", "content": [CAT]}]}, NOW)
    assert len(tokens) == 1


@pytest.mark.parametrize(
    "more",
    [{"truncate_prompt_tokens": 5}, {"add_special_tokens": True}, {"continue_final_message": True}],
)
def test_a_truncated_or_continued_prompt_with_images_has_no_tokens(more: Body) -> None:
    body = {"messages": [*TALK, {"role": "user", "content": [CAT]}], "add_generation_prompt": False, **more}
    assert len(load("parts").before_media(body, NOW)) == 0


def proved_settings(body: str) -> list[bool]:
    """Settings of a template that switches thinking, in the order in which they are proved."""
    prompts = PromptEncoder.load(TOKENIZER, "{{ enable_thinking }}" + body)
    prompts.remember(TokenRunCache(), NOW, lambda template: None)
    assert prompts._settings is not None
    settings = prompts._settings._by_variables.values()
    assert prompts._settings.num_units == sum(each.num_units for each in settings)
    return ["enable_thinking" in each.variables for each in settings if each.stubs is not None]


def test_settings_of_a_costly_template_are_proved_with_their_requests() -> None:
    """A load proves the plain ones, whatever they take."""
    loop = "{% for m in messages %}{{ '<|im_start|>' + m.role + (m.content or '') }}BODY{% endfor %}"
    assert proved_settings(loop.replace("BODY", "")) == [False] * 2 + [True] * 4
    costly = loop.replace("BODY", "{% for i in range(150) %}{{ i }}{% endfor %}")
    plain = proved_settings(costly)
    assert plain[:2] == [False, False] and len(plain) < 6
