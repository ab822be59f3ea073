"""Models that appear and disappear, and the source of their prompts' tokens."""

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway import request
from gateway.app import bundled_tokenizer
from gateway.config.models import ModelTable
from gateway.core.errors import ConfigError
from gateway.core.rendering import VLLM, Rendering
from gateway.core.request import InferenceRequest
from gateway.core.worker import ServedModel, Worker, WorkerId
from gateway.models.catalog import MAX_IDLE, MAX_ROOTS
from gateway.models.metrics import ModelsCollector
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics
from gateway.parity.probes import PROBES
from gateway.tokenization.prompt_encoder import PromptEncoder
from gateway.tokenization.sglang import SglangEncoder
from gateway.tokenization.worker_tokens import tokenize_bodies
from tests.support.patience import until
from tests.support.worlds.catalog import BUNDLED, CHAT, CatalogWorld, TokenizingEngine


@pytest.fixture
def broken(tmp_path: Path) -> str:
    shutil.copytree(bundled_tokenizer(), tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    return str(tmp_path / "broken")


async def test_the_tokenizer_of_a_new_model_is_found_by_its_root() -> None:
    """All served names of the root have it; the name itself is irrelevant."""
    world = CatalogWorld()
    assert world.source() == "none"
    await world.join(
        "w:1", ServedModel("m", BUNDLED), ServedModel("gpt", BUNDLED), ServedModel("lora", BUNDLED, "lora")
    )
    assert world.access() == {"w:1": "local"}
    assert [world.source(name) for name in ("m", "gpt", "lora", "other")] == ["fastokens"] * 3 + ["none"]
    assert world.engines["http://w:1"].num_asked == len(PROBES)
    assert world.catalog.tokens_at("http://w:1")[0]["reason"].startswith("equal in all ")


async def test_requests_do_not_wait_while_a_tokenizer_is_loaded() -> None:
    world = CatalogWorld()
    task = world.tasks.start("join", world.join("w:1"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.source() == "none"
    await task
    assert world.source() == "fastokens"


async def test_a_worker_with_other_tokens_is_routed_without_a_prefix_lookup() -> None:
    world = CatalogWorld()
    await world.join("w:1")
    differing = await world.join("w:2", shift=1)
    assert (world.access(), world.apart()) == ({"w:1": "local", "w:2": "none"}, {"w:2"})
    sizes = {e.member.worker.id: e.group.block_size for e in world.fleet.eligible("m")}
    assert sizes == {"w:1": 16, "w:2": 0}
    await world.leave(differing)
    assert (world.access(), world.apart()) == ({"w:1": "local"}, set())
    await world.join("w:2")
    assert (world.access(), world.apart()) == ({"w:1": "local", "w:2": "local"}, set())


async def test_where_most_workers_differ_they_are_asked_for_tokens() -> None:
    world = CatalogWorld()
    first = await world.join("w:1", shift=1)
    assert (world.access(), world.source()) == ({"w:1": "remote"}, "none")
    await world.join("w:2", shift=1)
    await world.join("w:3", shift=0)
    assert world.access() == {"w:1": "remote", "w:2": "remote", "w:3": "none"}
    assert world.apart() == {"w:3"}
    await world.leave(first)
    assert (world.access(), world.source()) == ({"w:2": "none", "w:3": "local"}, "fastokens")
    assert None in world.forgotten and "http://w:3" in world.forgotten


@pytest.mark.slow
async def test_a_broken_tokenizer_of_ten_is_routed_on_load_and_the_others_work(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    tables = {f"m{number}": ModelTable(tokenizer=BUNDLED) for number in range(9)}
    world = CatalogWorld({**tables, "m9": ModelTable(tokenizer=broken)})
    for number in range(10):
        await world.join(f"w:{number}", ServedModel(f"m{number}", f"root{number}"))
    assert [world.source(f"m{number}") for number in range(10)] == ["fastokens"] * 9 + ["failed"]
    assert world.metrics.prompt_failures == {"m9": 1}
    errors = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1 and broken in errors[0]
    status = {each["model"]: each for each in world.catalog.describe()}
    assert (status["root9"]["tokenizer"], status["root9"]["source"]) == ("broken", "none")
    assert broken in status["root9"]["tokenizer_reason"]
    assert {status[f"root{number}"]["tokenizer"] for number in range(9)} == {"loaded"}
    samples = [s for metric in ModelsCollector(world.catalog, Counter()).collect() for s in metric.samples]
    found = {s.labels["model"] for s in samples if s.name == "kvgate_tokenizer_broken" and s.value}
    assert found == {"root9"}


TRAP = "{% if messages|length == 33 %}{{ 'a' * 10**12 }}{% endif %}{{ messages[0].content }}"


async def unprobed(tables: Mapping[str, ModelTable]) -> CatalogWorld:
    """World with a worker that is not compared."""
    world = CatalogWorld(tables, probes=False)
    worker = Worker(WorkerId("w:1"), "http://w:1", (ServedModel("m", "root"),), block_size=16)
    world.fleet.add(worker)
    world.catalog.joined([worker])
    await asyncio.gather(*world.tasks._tasks)
    return world


def chat_of(num: int) -> InferenceRequest:
    return request("/v1/chat/completions", {"model": "m", "messages": [CHAT["messages"][1]] * num})


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_template_that_takes_too_much_for_a_request_is_refused_from_then_on(
    in_thread: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(TRAP + f"{{# {in_thread} #}}")
    tables = {"m": ModelTable(tokenizer=BUNDLED, template=str(path))}
    world = await unprobed(tables)
    assert world.prompts.tokenize(chat_of(32)).tokens
    with caplog.at_level(logging.INFO):
        make = partial(world.prompts.tokenize, chat_of(33))
        assert not (await asyncio.to_thread(make) if in_thread else make()).tokens
        assert not world.prompts.has_local("m")
        await asyncio.sleep(0)
        for _ in range(3):
            assert not world.prompts.is_local(chat_of(33))
            await asyncio.sleep(0)
    (line,) = [line for line in caplog.messages if line.startswith("tokenizer of")]
    assert "its workers tokenize: chat template: it takes more time or memory than a template may" in line
    (status,) = world.catalog.describe()
    assert "more time or memory" in status["tokenizer_reason"] and status["source"] == "remote"
    worker = next(iter(world.fleet)).worker
    (report,) = await world.catalog.look(worker, partial(world._post, worker.url))
    assert "more time or memory" in report.note and report.fault is None, "as `kvgate check` prints it"
    again = await unprobed(tables)
    assert "more time or memory" in again.catalog.describe()[0]["tokenizer_reason"], (
        "a reload does not forget it"
    )


async def test_check_reports_a_broken_tokenizer(broken: str) -> None:
    world = CatalogWorld({"m": ModelTable(tokenizer=broken)})
    worker = await world.join("w:1", ServedModel("m", "root"))
    (sight,) = await world.catalog.look(worker, partial(world._post, worker.url))
    assert sight.fault is not None and broken in sight.fault and 'renderer = "worker"' in sight.fault
    assert "tokens of root: none" in sight.note


async def test_check_reports_other_tokens() -> None:
    """Other tokens are a fault of a given tokenizer; where one was found, a template may be the
    worker's own.
    """
    for tables, is_fault in (({"m": ModelTable(tokenizer=BUNDLED)}, True), ({}, False)):
        world = CatalogWorld(tables)
        worker = await world.join("w:1", shift=1)
        (sight,) = await world.catalog.look(worker, partial(world._post, worker.url))
        assert (sight.fault is not None) is is_fault
        assert "remote" in sight.note and "from token 0 on" in sight.note
        assert not world.catalog.has_tokenizer("m")


async def test_a_table_names_the_model_by_a_served_name_or_its_root() -> None:
    for key in ("m", "root"):
        world = CatalogWorld({key: ModelTable(tokenizer=BUNDLED)})
        await world.join("w:1", ServedModel("m", "root"))
        assert (world.access("root"), world.source()) == ({"w:1": "local"}, "fastokens")
        assert world.catalog.has_tokenizer("m") and not world.catalog.has_tokenizer("root")


async def test_workers_are_asked_where_a_table_says_so_or_no_tokenizer_is_found() -> None:
    world = CatalogWorld({"m": ModelTable(renderer="worker")})
    await world.join("w:1")
    assert (world.access(), world.source()) == ({"w:1": "remote"}, "none")
    await world.join("w:2", ServedModel("n", "/nowhere"))
    assert (world.access("/nowhere"), world.source("n")) == ({"w:2": "remote"}, "none")


async def test_where_no_worker_tokenizes_no_request_asks() -> None:
    world = CatalogWorld()
    await world.join("w:1", ServedModel("m", "/nowhere"), shift=None)
    assert world.engines["http://w:1"].num_asked == 2
    assert (world.access("/nowhere"), world.source()) == ({"w:1": "none"}, "failed")
    assert world.metrics.prompt_failures == {"m": 1}


async def test_a_worker_that_tokenizes_later_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.models.catalog.RETRY_S", 0.01)
    world = CatalogWorld()
    worker = await world.join("w:1", ServedModel("m", "/nowhere"), shift=None)
    world.engines[worker.url].shift = 0
    await until(lambda: world.source() == "none", seconds=30)
    assert world.access("/nowhere") == {"w:1": "remote"}
    await world.tasks.stop()


async def test_a_wrong_tokenizer_for_all_models_is_rejected(broken: str) -> None:
    with pytest.raises(ConfigError, match=r"^tokenizer: .*tokenizer.json"):
        CatalogWorld(any_model=broken)
    world = CatalogWorld(any_model=BUNDLED)
    assert world.source("anything") == "fastokens"
    assert [each["model"] for each in world.catalog.describe()] == ["all models"]
    await world.join("w:1", ServedModel("m", "root"))
    assert world.access("root") == {"w:1": "local"}
    assert [each["model"] for each in world.catalog.describe()] == ["root"]


async def test_without_probes_the_local_tokenizer_is_used() -> None:
    world = CatalogWorld(any_model=BUNDLED, probes=False)
    worker = Worker(WorkerId("w:1"), "http://w:1", (ServedModel("m", "root"),), block_size=16)
    world.engines[worker.url] = TokenizingEngine(1)
    world.fleet.add(worker)
    world.catalog.joined([worker])
    await asyncio.gather(*world.tasks._tasks)
    assert world.engines[worker.url].num_asked == 0
    assert (world.source(), world.catalog.tokens_at(worker.url)) == ("fastokens", [])


async def test_a_worker_dropped_before_its_probe_has_no_token_source() -> None:
    world = CatalogWorld()
    worker = Worker(WorkerId("w:1"), "http://w:1", (ServedModel("m", BUNDLED),), block_size=16)
    world.engines[worker.url] = TokenizingEngine()
    world.fleet.add(worker)
    world.catalog.joined([worker])
    await world.leave(worker)
    await asyncio.gather(*world.tasks._tasks)
    assert world.access() == {}


async def test_an_alias_has_the_tokenizer_of_its_model() -> None:
    world = CatalogWorld(aliases={"gpt-4": BUNDLED})
    await world.join("w:1")
    assert world.source("gpt-4") == "fastokens"
    body = request("/v1/chat/completions", {"model": "gpt-4", **CHAT})
    assert tokenize_bodies(body, "m")[0]["model"] == "m"


# engines of several renderings -----------------------------------------------------------------

NEWEST, OLDER = Rendering("sglang", (0, 5, 23)), Rendering("sglang", (0, 5, 10))
PARTS = {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "b")]}]}


class SglangEngine(TokenizingEngine):
    """SGLang with a `/tokenize` that renders chats, unless it is an old one."""

    def __init__(self, rendering: Rendering) -> None:
        super().__init__()
        self._takes_chats = rendering == NEWEST
        encoder = SglangEncoder.load_as(rendering, bundled_tokenizer())
        self._prompts = PromptSource({"*": encoder}, Metrics())

    def answer(self, body: Any) -> bytes | None:
        assert "add_generation_prompt" not in body
        return super().answer(body) if self._takes_chats or "prompt" in body else None


def parts(world: CatalogWorld, rendering: Rendering = VLLM) -> list[int]:
    """Tokens of a chat of parts as engines of a rendering make them."""
    prompt = world.prompts.tokenize(request("/v1/chat/completions", {"model": "m", **PARTS}))
    (tokens,) = prompt.rendered_by(rendering).tokens or ((),)
    return list(tokens)


def text_of(world: CatalogWorld, rendering: Rendering = VLLM) -> str:
    return world.prompts.decode("m", parts(world, rendering)) or ""


async def join_sglang(
    world: CatalogWorld, name: str, rendering: Rendering = NEWEST, *served: ServedModel
) -> Worker:
    return await world.join(name, *served, engine=SglangEngine(rendering), rendering=rendering)


@pytest.mark.parametrize(("rendering", "num"), [(NEWEST, len(PROBES)), (OLDER, 6)])
async def test_a_fleet_of_sglang_has_local_tokens_as_it_renders(rendering: Rendering, num: int) -> None:
    world = CatalogWorld()
    await join_sglang(world, "w:1", rendering)
    assert world.access() == {"w:1": "local"}
    (status,) = world.catalog.describe()
    assert status["rendering"] == str(rendering)
    assert status["workers"][0]["reason"] == f"equal in all {num} prompts that both tokenized"
    assert "a b" in text_of(world)
    prompt = world.prompts.tokenize(request("/v1/chat/completions", {"model": "m", **PARTS}))
    assert not prompt.others  # a fleet of one engine has one prompt


async def test_a_mixed_fleet_has_the_prompts_of_both_engines() -> None:
    world = CatalogWorld()
    await world.join("v:1")
    await world.join("v:2")
    await join_sglang(world, "s:1")
    assert world.apart() == set()
    assert "a\nb" in text_of(world) and "a b" in text_of(world, NEWEST)
    assert [(each["rendering"], each["source"]) for each in world.catalog.describe()] == [
        ("vllm", "local"),
        ("sglang 0.5.23", "local"),
    ]
    groups = {e.group.rendering for e in world.fleet.eligible("m")}
    assert groups == {VLLM, NEWEST}


@pytest.mark.parametrize("is_sglang_first", [True, False])
async def test_engines_that_report_two_roots_of_one_model_have_a_prompt_each(
    is_sglang_first: bool,
) -> None:
    """vLLM reports the model's path, SGLang the name by which it is served."""
    world = CatalogWorld({"m": ModelTable(tokenizer=BUNDLED)})
    if is_sglang_first:
        sglang = await join_sglang(world, "s:1", NEWEST, ServedModel("m", "m"))
        vllm = await world.join("v:1")
    else:
        vllm = await world.join("v:1")
        sglang = await join_sglang(world, "s:1", NEWEST, ServedModel("m", "m"))
    assert "a\nb" in text_of(world) and "a b" in text_of(world, NEWEST)
    await world.leave(sglang)
    assert parts(world) == parts(world, NEWEST) and "a\nb" in text_of(world)
    again = await join_sglang(world, "s:2", NEWEST, ServedModel("m", "m"))
    await world.leave(vllm)
    assert "a b" in text_of(world)
    await world.leave(again)


async def test_a_prompt_that_all_engines_make_alike_is_one() -> None:
    world = CatalogWorld()
    await world.join("v:1")
    await join_sglang(world, "s:1")
    prompt = world.prompts.tokenize(request("/v1/chat/completions", {"model": "m", **CHAT}))
    assert prompt.tokens and not prompt.others


async def test_a_body_that_one_engine_rejects_has_the_other_s_prompt() -> None:
    world = CatalogWorld()
    await world.join("v:1")
    await join_sglang(world, "s:1")
    body = {"model": "m", "messages": [{"role": "critic", "content": "x"}]}
    prompt = world.prompts.tokenize(request("/v1/chat/completions", body))
    assert prompt.tokens and prompt.rendered_by(NEWEST).tokens == ()
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "truncate_prompt_tokens": -2}
    prompt = world.prompts.tokenize(request("/v1/chat/completions", body))
    assert prompt.tokens and prompt.rendered_by(VLLM).tokens == ()
    assert not world.metrics.prompt_failures
    body = {"model": "m", "messages": [{"role": "user", "content": 5}]}
    assert world.prompts.tokenize(request("/v1/chat/completions", body)).source == "failed"
    assert world.metrics.prompt_failures.total() == 1


async def test_the_prompts_of_an_engine_end_with_its_last_worker() -> None:
    world = CatalogWorld()
    vllm = await world.join("v:1")
    sglang = await join_sglang(world, "s:1")
    await world.leave(sglang)
    assert parts(world) == parts(world, NEWEST)
    again = await join_sglang(world, "s:2")
    await world.leave(vllm)
    assert "a b" in text_of(world) and world.apart() == set()
    await world.leave(again)


async def test_a_model_that_sglang_renders_by_code_is_tokenized_by_its_workers(tmp_path: Path) -> None:
    shutil.copytree(bundled_tokenizer(), tmp_path / "coded")
    (tmp_path / "coded" / "config.json").write_text('{"architectures": ["KimiK3ForCausalLM"]}')
    world = CatalogWorld({"m": ModelTable(tokenizer=str(tmp_path / "coded"))})
    await join_sglang(world, "s:1")
    assert world.access() == {"s:1": "remote"}
    assert "by code" in world.catalog.describe()[0]["tokenizer_reason"]
    await world.join("v:1")
    prompt = world.prompts.tokenize(request("/v1/chat/completions", {"model": "m", **CHAT}))
    assert prompt.tokens and prompt.rendered_by(NEWEST).tokens == ()


async def test_tokenizers_of_two_renderings_share_the_vocabulary() -> None:
    world = CatalogWorld(any_model=BUNDLED)
    await world.join("v:1")
    await join_sglang(world, "s:1")
    one, other = (entry.tokenizer.renderer for entry in world.catalog)
    assert isinstance(one, PromptEncoder) and isinstance(other, PromptEncoder)
    assert one.tokenizer is other.tokenizer


@pytest.mark.parametrize("rendering", [NEWEST, OLDER])
async def test_check_finds_nothing_wrong_with_sglang_s_prompts(rendering: Rendering) -> None:
    world = CatalogWorld({"m": ModelTable(tokenizer=BUNDLED)})
    worker = await join_sglang(world, "s:1", rendering)
    (sight,) = await world.catalog.look(worker, partial(world._post, worker.url))
    assert sight.fault is None
    assert f"rendered as {rendering}: local, equal in all" in sight.note
    assert world.catalog.has_tokenizer("m", rendering) and not world.catalog.has_tokenizer("m")


async def test_an_endpoint_with_thousands_of_roots_has_tokenizers_of_some(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of tokenizers are published once as it joins, not once for each of its models."""
    world, num = CatalogWorld(), 4000
    await world.join("good:1")
    set_all, published = world.prompts.set_all, list[int]()

    def count(*tables: Any) -> None:
        published.append(1)
        set_all(*tables)

    monkeypatch.setattr(world.prompts, "set_all", count)
    many = [ServedModel(f"n{number}", f"/none/{number}") for number in range(num)]
    worker = Worker(WorkerId("w:1"), "http://w:1", tuple(many), block_size=16)
    world.engines[worker.url] = TokenizingEngine(None)
    world.fleet.add(worker)
    world.catalog.joined([worker])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(published) == 1
    assert len(list(world.catalog)) == 1 + MAX_ROOTS
    assert world.source() == "fastokens" and world.source(f"n{num - 1}") == "failed"
    assert f"w:1 serves {num} roots: prompts of all but {MAX_ROOTS} are routed by load" in caplog.text
    await world.tasks.stop()


async def test_adapters_of_one_root_are_all_followed() -> None:
    world = CatalogWorld()
    await world.join("w:1", *(ServedModel(f"n{number}", BUNDLED) for number in range(4096)))
    assert world.source("n4095") == "fastokens"


async def test_roots_that_no_worker_serves_any_more_are_forgotten_where_they_are_many() -> None:
    world = CatalogWorld(probes=False)
    for number in range(MAX_IDLE + 10):
        worker = Worker(WorkerId("w:1"), "http://w:1", (ServedModel("m", f"/none/{number}"),))
        world.fleet.add(worker)
        world.catalog.joined([worker])
        await world.leave(worker)
    assert len(list(world.catalog)) < MAX_IDLE
    assert len(world.catalog.describe()) < MAX_IDLE
    await world.tasks.stop()


async def test_a_worker_that_joins_again_and_again_is_compared_by_one_task() -> None:
    """Each of its lives ends the tries of the one before, which may be an hour apart."""
    world = CatalogWorld()
    for _ in range(5):
        worker = await world.join("w:1", shift=None)
        assert len(world.tasks) == 1
        await world.leave(worker)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(world.tasks) == 0
