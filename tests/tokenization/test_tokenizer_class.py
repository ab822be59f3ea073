"""Tokenizers that transformers 5 makes of a vocabulary. The oracle is transformers: digests of its tokens."""

import json
from pathlib import Path

import pytest

from gateway.app import bundled_tokenizer
from gateway.core.rendering import Rendering
from gateway.tokenization.model_families import load
from gateway.tokenization.prompt_encoder import PromptEncoder, PromptError
from gateway.tokenization.tokenizer_class import REBUILT, USUAL_ADVICE, class_of, rebuilt
from tests.support.tokenizer_models import GOLDEN, KINDS, TEXTS, digest, write_model

MADE = json.loads(GOLDEN.read_text("utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    prompts = PromptEncoder.load(write_model(tmp_path / "m", kind))
    tokens = [digest(prompts.encode(text, True).tolist()) for text in TEXTS]
    wrong = [
        text
        for text, ours, theirs in zip(TEXTS, tokens, MADE[kind]["digests"], strict=True)
        if ours != theirs
    ]
    assert wrong == []
    assert (prompts.tokenizer_class or "TokenizersBackend") == MADE[kind]["class"]
    assert ("built as" in prompts.why) is (prompts.tokenizer_class is not None)


def test_classes_differ_from_the_file_and_from_each_other() -> None:
    digests = {kind: tuple(made["digests"]) for kind, made in MADE.items()}
    for kind in ("SmolLM2", "Llama 2", "Yi", "Qwen 3", "Gemma 2"):
        assert digests[kind] != digests["Llama 3"], kind
    assert len({digests[kind] for kind in ("SmolLM2", "Vicuna", "Qwen 3", "Gemma 2")}) == 4
    assert {made["class"] for made in MADE.values()} == {*REBUILT, "TokenizersBackend"}


def test_model_of_the_hub_with_a_wrong_class_is_known_by_its_id(tmp_path: Path) -> None:
    config, model = {"tokenizer_class": "LlamaTokenizerFast"}, {"model_type": "llama"}
    cached = tmp_path / "models--deepseek-ai--DeepSeek-R1-Distill-Llama-8B" / "snapshots" / "abc"
    assert class_of(cached, config, model) is None
    assert class_of(tmp_path / "DeepSeek-R1-Distill-Llama-8B", config, model) == "LlamaTokenizer"


def test_code_of_the_models_own_leaves_the_file() -> None:
    config = {"tokenizer_class": "GPT2Tokenizer", "auto_map": {"AutoTokenizer": ["a.B", None]}}
    assert class_of(Path("x"), config, {"model_type": "llama"}) is None


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"tokenizer_class": "BertTokenizer"}, "BertTokenizer"),
        ({"tokenizer_class": 5}, None),
        ({}, None),
    ],
)
def test_class_that_is_not_rebuilt_here_is_named_where_tokens_differ(
    tmp_path: Path, config: dict[str, object], name: str | None
) -> None:
    write_model(tmp_path / "m", "no class")
    path = tmp_path / "m" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    prompts = PromptEncoder.load(tmp_path / "m")
    assert prompts.tokenizer_class == name
    if name:
        assert name in prompts.parity_advice and "while kvgate loads tokenizer.json" in prompts.parity_advice
    else:
        assert prompts.parity_advice == USUAL_ADVICE
    made = PromptEncoder.load(write_model(tmp_path / "n", "SmolLM2"))
    assert "kvgate builds a GPT2Tokenizer" in made.parity_advice


def test_file_of_another_form_is_read_as_it_is_or_refused(tmp_path: Path) -> None:
    text = '{"model":{"type":"Unigram","vocab":[]}}'
    assert rebuilt(text, "GPT2Tokenizer", {}) == text
    write_model(tmp_path / "m", "SmolLM2")
    (tmp_path / "m" / "tokenizer.json").write_text('{"model":{"type":"BPE"}}')
    with pytest.raises(PromptError, match=r"tokenizer\.json"):
        PromptEncoder.load(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text("[")
    with pytest.raises(PromptError, match=r"tokenizer\.json"):
        PromptEncoder.load(tmp_path / "m")


def test_bundled_tokenizer_has_no_class_of_its_own() -> None:
    assert PromptEncoder.load(bundled_tokenizer()).tokenizer_class is None


def test_file_is_read_as_it_is_where_workers_do(tmp_path: Path) -> None:
    directory, plain = write_model(tmp_path / "m", "SmolLM2"), write_model(tmp_path / "p", "no class")
    made, of_file = (PromptEncoder.load(directory, is_of_file=given) for given in (False, True))
    as_it_is = PromptEncoder.load(plain)
    tokens = [[each.encode(text, True) for text in TEXTS] for each in (made, of_file, as_it_is)]
    assert tokens[1] == tokens[2] != tokens[0]
    assert made.has_two_readings and of_file.has_two_readings and not as_it_is.has_two_readings
    assert "tokenizer.json as it is, not built as GPT2Tokenizer" in of_file.why
    assert "like transformers 4" in of_file.parity_advice


@pytest.mark.parametrize("rendering", [Rendering("sglang", (0, 5, 23)), Rendering("mlx")])
def test_file_is_read_as_it_is_in_each_rendering(tmp_path: Path, rendering: Rendering) -> None:
    directory = write_model(tmp_path / "m", "SmolLM2")
    of_file = load(rendering, "jinja", directory, None, is_of_file=True)
    assert isinstance(of_file, PromptEncoder) and of_file.is_of_file
    assert of_file.encode("In 1984", False) == PromptEncoder.load(directory, is_of_file=True).encode(
        "In 1984", False
    )
