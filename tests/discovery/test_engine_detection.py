"""Detection of the engine behind an endpoint."""

import pytest

from engines import ENGINES
from gateway.core.engine import Engine
from gateway.core.errors import ConfigError
from gateway.discovery.engine_detection import Engines


def name(engine: Engine | None) -> str | None:
    return engine.name if engine else None


def models(*owners: str) -> bytes:
    cards = ",".join(f'{{"id":"m{i}","owned_by":"{owner}"}}' for i, owner in enumerate(owners))
    return f'{{"object":"list","data":[{cards}]}}'.encode()


@pytest.mark.parametrize(
    ("body", "engine"),
    [
        (models("vllm"), "vllm"),
        (models("sglang"), "sglang"),
        (models("tensorrt_llm"), "trtllm"),
        (models("library"), None),
        (models("me", "vllm"), "vllm"),
        (b'{"data":[{"id":"m"}]}', None),
        (b'{"data":[]}', None),
        (b"<html>", None),
        (b'{"data":[{"owned_by":"\xff"}]}', None),
    ],
)
def test_an_engine_is_detected_by_the_owner_of_its_models(body: bytes, engine: str | None) -> None:
    assert name(Engines(ENGINES).by_models(body)) == engine


@pytest.mark.parametrize(
    ("page", "engine"),
    [
        (b"# TYPE vllm:x gauge\nvllm:x 1", "vllm"),
        (b"sglang:num_running_reqs{} 1", "sglang"),
        (b"x 1\ntrtllm_num_requests_running{} 1", "trtllm"),
        (b"my_vllm:x 1", None),
        (b"", None),
    ],
)
def test_an_engine_is_detected_by_the_names_of_its_metrics(page: bytes, engine: str | None) -> None:
    assert name(Engines(ENGINES).by_metrics(page)) == engine


def test_any_other_server_is_a_plain_openai_server() -> None:
    assert Engines(ENGINES).other.name == "openai"


def test_a_configured_engine_is_not_detected() -> None:
    engines = Engines(ENGINES, ["sglang", "http://a:1/=trtllm"])
    assert name(engines.configured("http://a:1")) == "trtllm"
    assert name(engines.configured("http://b:1")) == "sglang"
    assert Engines(ENGINES, ["http://a:1=openai"]).configured("http://b:1") is None
    assert engines.named("vllm").name == "vllm"
    assert repr(engines) == f"Engines({', '.join(ENGINES)})"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("vlm", "engine: unknown engine 'vlm'; did you mean vllm?"),
        ("http://a:1=", "engine: unknown engine ''"),
        ("ftp://a=vllm", "engine: .*ftp"),
    ],
)
def test_a_wrong_engine_option_is_rejected(option: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Engines(ENGINES, [option])
