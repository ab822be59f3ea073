"""Token sources of several models: tokenizers from the hub, its cache or the configuration, and workers'."""

import re
import shutil
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from engines.sim import server as sim_server
from gateway.app import bundled_tokenizer
from gateway.commands.check_run import check
from gateway.config import config_of
from gateway.config.models import ModelTable
from tests.support.model_hub import COMMIT, FakeHub, running, use
from tests.support.stories.joining_fleet import LONG, joining_fleet

pytestmark = pytest.mark.process


async def test_tokenizer_of_a_new_model_comes_from_the_hub_and_later_from_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(FakeHub({"org/name": bundled_tokenizer()})) as hub:
        use(monkeypatch, tmp_path, hub.url)
        async with joining_fleet() as f:
            await f.join("org/name", alias=("served",))
            assert (await f.models())["org/name"]["from"] == f"{hub.url}, kept in {tmp_path}"
            assert [await f.source(name) for name in ("org/name", "served")] == ["fastokens", "fastokens"]
            await f.warm("org/name", "Another " + LONG)
            completion = await f.chat("served", "Another " + LONG)
            assert int(completion["overlap-tokens"]) > 0, "one root, one index"
            assert (await f.chat("org/name"))["model"] == "org/name"
        asked = len(hub.asked)
        async with joining_fleet() as f:
            await f.join("org/name")
            assert (await f.models())["org/name"]["from"] == f"the cache in {tmp_path}"
            assert len(hub.asked) == asked


async def test_broken_tokenizer_affects_its_own_model_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundled_tokenizer(), broken)
    (broken / "tokenizer.json").write_text('{"version": "1.0"}')
    tables = {f"m{n}": ModelTable(tokenizer=str(bundled_tokenizer())) for n in range(9)}
    async with joining_fleet(models={**tables, "m9": ModelTable(tokenizer=str(broken))}) as f:
        for n in (0, 1, 9):
            await f.join(f"m{n}")
        assert [await f.source(f"m{n}") for n in (0, 1, 9)] == ["fastokens", "fastokens", "failed"]
        models = await f.models()
        assert [models[f"m{n}"]["tokenizer"] for n in (0, 1, 9)] == ["loaded", "loaded", "broken"]
        assert str(broken) in models["m9"]["tokenizer_reason"]
        page = await f.admin("/metrics")
        assert 'kvgate_tokenizer_broken{model="m9"} 1.0' in page
        assert 'kvgate_tokenizer_broken{model="m0"} 0.0' in page
        assert 'kvgate_prompt_tokenization_failures_total{model="m9"} 1.0' in page
        config = config_of(worker=[sim.url for sim in f.sims], models=f.gateway.config.models)
        assert await check(config) == 1
        printed = capsys.readouterr().out
        assert printed.count("WRONG") == 1
        assert re.search(r"WRONG: the tokenizer of m9 is broken: .*tokenizer.json.*; repair it", printed)


async def test_worker_with_another_chat_template_is_routed_by_load_until_most_workers_have_it(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other"
    shutil.copytree(bundled_tokenizer(), other)
    config = other / "tokenizer_config.json"
    text = config.read_text()
    config.write_text(text.replace("'<|im_start|>system\\\\n'", "'<|im_start|>system!\\\\n'"))
    assert config.read_text() != text
    async with joining_fleet(tokenizer=[str(bundled_tokenizer())]) as f:
        same = await f.join("m")
        odd = await f.join("m", tokenizer=other)
        sources = {
            each["url"]: each["token_sources"][0]["source"]
            for each in (await f.admin("/admin/workers"))["endpoints"]
        }
        assert sources == {same.url: "local", odd.url: "none"}
        assert 'kvgate_token_source_endpoints{model="m",source="none"} 1.0' in await f.admin("/metrics")
        await f.join("m", tokenizer=other)
        (model,) = [each for each in (await f.models()).values() if each["model"] == "m"]
        assert model["source"] == "remote"
        assert await f.source("m") == "worker"
        await f.warm("m")


async def test_workers_tokenize_for_a_model_without_a_tokenizer() -> None:
    async with joining_fleet() as f:
        await f.join("private-model")
        assert await f.source("private-model") == "worker"
        await f.chat("private-model")
        assert 'kvgate_tokenize_calls_total{result="cached"} 1.0' in await f.admin("/metrics")


async def test_tokenizer_is_loaded_from_an_existing_hub_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, tmp_path)
    shutil.copytree(bundled_tokenizer(), tmp_path / "models--org--name" / "snapshots" / COMMIT)
    (tmp_path / "models--org--name" / "refs").mkdir()
    (tmp_path / "models--org--name" / "refs" / "main").write_text(COMMIT)
    async with joining_fleet() as f:
        await f.join("org/name")
        assert await f.source("org/name") == "fastokens"


async def test_alias_is_served_by_its_model() -> None:
    """The answer has the engine's own name of the model, so that clients see which model it was."""
    table = ModelTable(tokenizer=str(bundled_tokenizer()), aliases=["gpt-4"])
    async with joining_fleet(models={"org/name": table}) as f:
        await f.join("org/name")
        assert await f.source("gpt-4") == "fastokens"
        assert (await f.chat("gpt-4"))["model"] == "org/name"
        await f.warm("gpt-4", "Another " + LONG)
        assert int((await f.chat("org/name", "Another " + LONG))["overlap-tokens"]) > 0
        async with f.session.get(f"http://127.0.0.1:{f.gateway.port}/v1/models") as answer:
            cards = {card["id"]: card["root"] for card in (await answer.json())["data"]}
        assert cards == {"gpt-4": "org/name", "org/name": "org/name"}


async def test_model_of_which_the_template_needs_tools_is_served_with_them_and_refused_without(
    tmp_path: Path,
) -> None:
    needy = tmp_path / "needy"
    shutil.copytree(bundled_tokenizer(), needy)
    template = needy / "chat_template.jinja"
    template.write_text(
        "{%- for t in tools[:tools | length] %}{{ t | tojson }}{% endfor %}"
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    async with joining_fleet(models={"m": ModelTable(tokenizer=str(needy))}) as f:
        await f.join("m", tokenizer=needy)
        model = (await f.models())["m"]
        assert (model["tokenizer"], model["source"]) == ("loaded", "local")
        first = await f.chat("m", tools=tools)
        decision = await f.admin(f"/admin/decisions/{first['decision']}")
        assert decision["tokenized_by"] == "fastokens"

        async def is_found() -> bool:
            return int((await f.chat("m", tools=tools))["overlap-tokens"]) > 0

        await f.until(is_found)
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        url = f"http://127.0.0.1:{f.gateway.port}/v1/chat/completions"
        async with f.session.post(url, json=body) as answer:
            assert answer.status == 400 and "len()" in await answer.text(), "the engine's own refusal"


async def test_prompts_have_the_day_of_workers_in_another_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dated = tmp_path / "dated"
    shutil.copytree(bundled_tokenizer(), dated)
    (dated / "chat_template.jinja").write_text(
        "{%- for m in messages %}<|im_start|>{{ m.role }} {{ strftime_now('%d %B %Y') }}\n{{ m.content }}"
        "<|im_end|>\n{% endfor %}"
    )
    now = datetime.now(UTC)
    zone = timezone(timedelta(hours=14 if now.astimezone().hour >= 12 else -12))

    class ThereClock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(zone).replace(tzinfo=None)

    monkeypatch.setattr(sim_server, "datetime", ThereClock)
    async with joining_fleet(models={"m": ModelTable(tokenizer=str(dated))}) as f:
        await f.join("m", tokenizer=dated)
        (worker,) = (await f.admin("/admin/workers"))["endpoints"]
        assert worker["token_sources"][0]["source"] == "local", worker["token_sources"]
        assert await f.source("m") == "fastokens"
        await f.warm("m", "A day of its own. " + LONG)
