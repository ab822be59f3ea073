"""Workers of either transformers: the reading of tokenizer.json that they follow is found and used."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engines.sim import Sim, SimConfig
from gateway.app import Gateway
from gateway.config import config_of
from gateway.config.models import ModelTable
from gateway.core.worker import ServedModel
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics
from gateway.tokenization.prompt_encoder import PromptEncoder
from tests.support.patience import patience, until
from tests.support.tokenizer_models import write_model
from tests.support.worlds.catalog import CatalogWorld, TokenizingEngine

KIND = "SmolLM2"
SERVED = ServedModel("m", "root")


class ReadingEngine(TokenizingEngine):
    """Engine that makes the tokens of one reading of a model."""

    def __init__(self, directory: Path, *, is_of_file: bool) -> None:
        super().__init__()
        prompts = PromptEncoder.load(directory, is_of_file=is_of_file)
        self._prompts = PromptSource({"*": prompts}, Metrics())


class ReadingFleet:
    """Fleet of a model with a class beside its file."""

    def __init__(self, tmp_path: Path, kind: str = KIND) -> None:
        self.directory = write_model(tmp_path / "m", kind)
        self.world = CatalogWorld({"m": ModelTable(tokenizer=str(self.directory))})
        self.engines = [ReadingEngine(self.directory, is_of_file=given) for given in (False, True)]

    async def join(self, name: str, *, is_of_file: bool) -> ReadingEngine:
        engine = self.engines[is_of_file]
        await self.world.join(name, SERVED, engine=engine)
        return engine

    def why(self) -> str:
        (status,) = self.world.catalog.describe()
        return str(status["encoder_reason"])


@pytest.mark.parametrize("kind", ["SmolLM2", "Vicuna", "Qwen 3", "Gemma 2"])
async def test_worker_that_reads_the_file_as_it_is_has_local_tokens(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fleet = ReadingFleet(tmp_path, kind)
    engine = await fleet.join("w:1", is_of_file=True)
    assert fleet.world.access("root") == {"w:1": "local"}
    assert "tokenizer.json as it is" in fleet.why()
    (said,) = [line for line in caplog.messages if "the gateway now does too" in line]
    assert "root" in said and "tokenizer.json as it is (transformers 4)" in said
    asked = engine.num_asked
    await fleet.join("w:2", is_of_file=True)
    assert fleet.world.access("root") == {"w:1": "local", "w:2": "local"}
    assert engine.num_asked == 2 * asked  # the other reading is tried on the same answers


async def test_reading_in_use_stays_where_workers_agree_with_it(tmp_path: Path) -> None:
    fleet = ReadingFleet(tmp_path)
    await fleet.join("w:1", is_of_file=False)
    assert "built as GPT2Tokenizer" in fleet.why() and len(fleet.world.catalog.describe()) == 1
    await fleet.join("w:2", is_of_file=True)
    assert fleet.world.access("root") == {"w:1": "local", "w:2": "none"}
    assert len(fleet.world.catalog.describe()) == 1  # the other reading is no model of its own


async def test_most_workers_decide_and_it_changes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fleet = ReadingFleet(tmp_path)
    for name in ("w:1", "w:2"):
        await fleet.join(name, is_of_file=True)
    await fleet.join("w:3", is_of_file=False)
    assert fleet.world.access("root") == {"w:1": "local", "w:2": "local", "w:3": "none"}
    for name in ("w:4", "w:5"):
        await fleet.join(name, is_of_file=False)
    assert fleet.world.access("root") == dict.fromkeys(("w:1", "w:2"), "none") | dict.fromkeys(
        ("w:3", "w:4", "w:5"), "local"
    )
    assert "built as GPT2Tokenizer" in fleet.why()
    said = [line for line in caplog.messages if "the gateway now does too" in line]
    assert len(said) == 2 and "a GPT2Tokenizer built from tokenizer.json (transformers 5)" in said[1]


async def test_worker_of_neither_reading_tokenizes(tmp_path: Path) -> None:
    fleet = ReadingFleet(tmp_path)
    await fleet.world.join("w:1", SERVED, shift=1)
    assert fleet.world.access("root") == {"w:1": "remote"} and "built as GPT2Tokenizer" in fleet.why()


async def test_model_with_one_reading_is_loaded_once(tmp_path: Path) -> None:
    fleet = ReadingFleet(tmp_path, "Llama 3")
    await fleet.world.join("w:1", SERVED, shift=1)
    assert fleet.world.access("root") == {"w:1": "remote"}
    assert repr(fleet.world.catalog) == "Catalog(1 roots, 1 tokenizers)"


@pytest.mark.process
async def test_gateway_follows_a_running_worker_that_reads_the_file(tmp_path: Path) -> None:
    """The simulated worker's configuration names no class, so that it reads tokenizer.json as it is."""
    directory, plain = write_model(tmp_path / "m", KIND), write_model(tmp_path / "plain", "no class")
    sim = await Sim(SimConfig(port=0, tokenizer=plain)).start()
    gateway = Gateway(config_of(worker=[sim.url], tokenizer=[str(directory)], port=0, admin_port=0))
    try:
        await gateway.start()
        async with aiohttp.ClientSession() as session, asyncio.timeout(patience(60)):
            await until(lambda: followed(session, gateway), "the worker is compared", 60)
            model = await followed(session, gateway)
            assert model
            assert (
                model["workers"][0]["source"] == "local" and "equal in all" in model["workers"][0]["reason"]
            )
            assert "tokenizer.json as it is" in model["encoder_reason"]
            body = {"model": "m", "prompt": "In 1984 there were 12345 of them", "max_tokens": 1}
            url = f"http://127.0.0.1:{gateway.port}/v1/completions"
            async with session.post(url, json=body) as answer:
                assert answer.status == 200
    finally:
        await gateway.stop()
        await sim.stop()


async def followed(session: aiohttp.ClientSession, gateway: Gateway) -> dict[str, Any] | None:
    """Status of the model once its worker has been compared."""
    async with session.get(f"http://127.0.0.1:{gateway.admin_port}/admin/tokenizer") as answer:
        models = (await answer.json())["models"]
    return next((model for model in models if model["workers"]), None)
