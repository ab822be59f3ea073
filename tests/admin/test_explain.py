import json
from typing import Any

import pytest

from gateway.admin.explain import Preview
from gateway.config.tenant_limits import TenantLimits
from gateway.core.errors import Forbidden, InvalidRequest, Unauthorized, UnknownModel
from gateway.http.networks import Trusted
from gateway.tenancy.admission.request_identity import HeaderNames
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.authenticator import Authenticator
from gateway.tenancy.auth.key_format import format_key_record, parse_key_file
from gateway.tokenization.prompt_encoder import PromptError
from tests.support.worlds.exchanges import ExchangeWorld


class UnknowingTokenizer:
    """Worker tokenizer that fails for each prompt and keeps the keys it was asked with."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []

    def is_resting(self, url: str) -> bool:
        return False

    async def ask(self, url: str, request: object, key: str | None, *_: object) -> None:
        self.keys.append(key)
        raise PromptError("it has no /tokenize")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ExchangeWorld:
    world = ExchangeWorld(monkeypatch, "w:1", "w:2", session_header="x-session-id")
    world.context.prompts.worker_tokenizer = UnknowingTokenizer()  # type: ignore[assignment]
    return world


async def explained(
    world: ExchangeWorld, body: dict[str, Any], path: str | None = None, **headers: str
) -> dict[str, Any]:
    preview = Preview(world.dispatch, lambda decision: [{"prefill_s": 0.5}] * len(decision.candidates))
    return await preview.explain(json.dumps(body).encode(), path, headers)


async def test_a_preview_explains_the_decision_and_changes_nothing(world: ExchangeWorld) -> None:
    for _ in range(2):
        record = await explained(world, {"model": "m", "prompt": "x"}, Authorization="Bearer k")
        assert (record["worker"], record["policy"], record["reason"]) == ("w:1", "round_robin", "round robin")
        assert record["not_tokenized"] == "it has no /tokenize"
        assert [each["terms"] for each in record["candidates"]] == [{"prefill_s": 0.5}] * 2
        assert "id" not in record and "outcome" not in record
    assert world.is_clean() and len(world.records) == 0 and not world.metrics.prompt_failures
    assert world.context.prompts.worker_tokenizer.keys == ["Bearer k"] * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({"model": "m"}, None, "the body has none of messages, prompt"),
        ({"model": "m"}, "/v1/nothing", "unknown route '/v1/nothing'; known: /v1/chat/completions, "),
        ({"model": "m", "prompt": 7}, None, "'prompt' must be a string"),
        ({"model": "m", "messages": 7}, None, "'messages' must be a list of messages"),
    ],
)
async def test_an_invalid_request_is_rejected_by_explain(
    world: ExchangeWorld, body: dict[str, Any], path: str | None, words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await explained(world, body, path)
    assert caught.value.message.startswith(words)
    with pytest.raises(InvalidRequest, match="not a JSON object"):
        await Preview(world.dispatch, lambda decision: ()).explain(b"[1]", None, {})


async def test_a_preview_shows_the_tenant_and_whether_the_request_would_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tenants = {"acme": TenantLimits(priority=3)}
    world = ExchangeWorld(monkeypatch, "w:1", queue_above_in_flight=1, tenants=tenants)
    world.context.prompts.worker_tokenizer = UnknowingTokenizer()  # type: ignore[assignment]
    body: dict[str, Any] = {"model": "m", "prompt": "x"}
    record = await explained(world, body, **{"x-kvgate-tenant": "acme"})
    expected = {"tenant": "acme", "priority": 3, "slo_ttft_s": None, "result": "admitted", "reason": None}
    assert record["admission"] == expected
    exchange, _ = world.ask()
    assert (await explained(world, body))["admission"]["result"] == "queued"
    late = await explained(world, body, **{"x-kvgate-slo-ttft-ms": "1"})
    assert late["admission"]["slo_ttft_s"] == 0.001
    exchange.cancel("the end of the test")
    assert world.is_clean() and not world.context.gate.stats.requests["acme"]  # type: ignore[union-attr]


async def test_a_preview_takes_a_path_and_rejects_an_unknown_model(world: ExchangeWorld) -> None:
    assert (await explained(world, {"model": "m", "input": "x"}, "/v1/embeddings"))["worker"] == "w:1"
    with pytest.raises(UnknownModel):
        await explained(world, {"model": "other", "prompt": "x"})


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
async def test_a_preview_reads_files_as_editors_write_them(world: ExchangeWorld, encoding: str) -> None:
    preview = Preview(world.dispatch, lambda decision: ())
    record = await preview.explain('{"model":"m","prompt":"h\u00e9"}'.encode(encoding), None, {})
    assert record["worker"] == "w:1" and world.is_clean()
    with pytest.raises(InvalidRequest, match="ends at byte 4, before it is complete"):
        await preview.explain('{"a"'.encode(encoding), None, {})


async def test_a_preview_with_a_key_is_made_for_its_tenant(world: ExchangeWorld) -> None:
    names = HeaderNames(b"x-tenant", b"x-priority", b"x-slo")
    authenticator = Authenticator(
        clock=lambda: 0.0,
        names=names,
        trusted=Trusted((), "--trust-headers-from"),
        salt_of=lambda tenant: None,
    )
    key = make_key(bytes(6), bytes(32))
    authenticator.set_ring(parse_key_file(format_key_record(key, bytes(16), "acme", ["other"]), "keys"))
    preview, body = Preview(world.dispatch, lambda decision: (), authenticator), b'{"model":"m","prompt":"x"}'
    assert (await preview.explain(body, None, {}))["worker"] == "w:1"  # asked by an operator, without a key
    with pytest.raises(Forbidden):
        await preview.explain(body, None, {"X-Api-Key": key.decode()})
    with pytest.raises(Unauthorized):
        await preview.explain(body, None, {"Authorization": "Bearer other"})
