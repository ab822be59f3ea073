"""The library before two simulated engines, also with the lines that the package's docstring shows."""

import ast
import re
from collections.abc import AsyncIterator

import aiohttp
import pytest

import kvgate
from engines.sim import Sim, SimConfig
from gateway.app import bundled_tokenizer
from gateway.core.errors import ConfigError, InvalidRequest, NoWorker
from tests.support.patience import until

pytestmark = pytest.mark.process

PROMPT = list(range(100, 180))


@pytest.fixture
async def sims() -> AsyncIterator[list[Sim]]:
    running = [await Sim(SimConfig(seed=seed, decode_tokens_per_s=1000.0)).start() for seed in range(2)]
    yield running
    for sim in running:
        await sim.stop()


def _documented() -> str:
    """Lines in backticks of the package's docstring under "As a library"."""
    return "\n".join(re.findall(r"`([^`]+)`\n", (kvgate.__doc__ or "").partition("As a library:")[2] + "\n"))


async def test_lines_of_the_docstring_run_as_they_stand(sims: list[Sim]) -> None:
    source = _documented().replace("http://10.0.0.1:8000", sims[0].url)
    assert sims[0].url in source and len(source.splitlines()) == 3
    names: dict[str, object] = {"kvgate": kvgate}
    await eval(compile(source, "docstring", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    decision = names["decision"]
    assert isinstance(decision, kvgate.Decision)
    assert decision.worker.url == sims[0].url


async def test_decision_goes_to_the_worker_that_has_cached_the_prompt(sims: list[Sim]) -> None:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 1}
    async with kvgate.connect([sim.url for sim in sims]) as router:
        assert len(router.fleet) == 2
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{sims[1].url}/v1/completions", json=body) as answer,
        ):
            assert answer.status == 200
        await until(lambda: router.index.num_blocks(list(router.fleet)[1].worker.id))
        decision = router.decide(kvgate.request("/v1/completions", body))
        assert (decision.worker.url, decision.overlap_tokens) == (sims[1].url, 64)
        assert router.ledger.load(decision.worker.id).num_in_flight == 1
        assert [router.finish(decision), router.finish(decision)] == [True, False]
        assert router.ledger.load(decision.worker.id).num_in_flight == 0


async def test_text_is_tokenized_with_the_given_tokenizer(sims: list[Sim]) -> None:
    async with kvgate.connect([sims[0].url], tokenizer=[str(bundled_tokenizer())], events="off") as router:
        messages = [{"role": "user", "content": "Rivers, please."}]
        decision = router.decide(kvgate.request("/v1/chat/completions", {"model": "m", "messages": messages}))
        assert decision.num_tokens > 4
        assert decision.prompt_from in ("fastokens", "tokenizers")


async def test_connect_succeeds_before_a_worker_is_up() -> None:
    async with kvgate.connect(["http://127.0.0.1:9"]) as router:
        with pytest.raises(NoWorker, match="no worker has joined yet"):
            router.decide(kvgate.request("/v1/completions", {"model": "m", "prompt": [1]}))


@pytest.mark.parametrize(
    ("workers", "options", "words"),
    [
        (["10.0.0.1:8000"], {}, "worker: '10.0.0.1:8000' is not an http"),
        ([], {"policy": "best"}, "policy: there is no policy 'best'; known: expected_ttft, "),
        ([], {"prot": 1}, "there is no option prot; did you mean port?"),
    ],
)
async def test_invalid_options_are_rejected(
    workers: list[str], options: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        async with kvgate.connect(workers, **options):
            pass


def test_request_is_validated_as_by_the_server() -> None:
    assert kvgate.request("/v1/completions", b'{"model": "m", "prompt": "x"}').model == "m"
    with pytest.raises(InvalidRequest):
        kvgate.request("/v1/completions", {"model": "m"})
