"""`kvgate check`: each mode, the obstacles to the next one, and the flag that helps."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from engines import ENGINES
from gateway.commands.check import Checker, Finding, check_all
from gateway.commands.check_events import EventsCheck
from gateway.core.blocks import root_hash
from gateway.core.engine import EngineFlags, EventSource
from gateway.core.event_stream import StreamState
from gateway.core.request import InferenceRequest
from gateway.core.worker import Role, Worker
from gateway.discovery.declared import DeclaredSettings
from gateway.discovery.engine_detection import Engines
from gateway.discovery.probed import Mode, event_source
from gateway.replication.messages import AgentHello, AgentStatus
from tests.support.fakes import FakeEngine, only, serve, session, url_of

SOURCE = {"dp_rank": 0, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:6557"}


@dataclass
class Answers:
    """Scripted responses of a worker; the defaults are a worker that reaches the best mode."""

    health: int = 200
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "m", "root": "root"}])
    metrics: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"0": {"block_size": 16, "num_gpu_blocks": 100}}
    )
    sources: list[dict[str, Any]] = field(default_factory=lambda: [SOURCE])
    tokenize: int = 200
    tokens: list[int] = field(default_factory=lambda: [1])
    cached_tokens: int | None = 32
    takes_ids: bool = True
    completions: int = 200
    chats: int = 404
    chat_tokens: list[int] | None = None
    """Tokens of a chat by its /tokenize; None where that takes texts only."""
    chat_cached: int | None = 32
    asked: list[tuple[str, str | None, Any]] = field(default_factory=list)

    async def serve(self) -> TestServer:
        return await serve(
            web.get("/health", self._health),
            web.get("/v1/models", self._models),
            web.get("/metrics", self._metrics),
            web.get("/kv_event_sources", self._sources),
            web.get("/version", self._version),
            web.post("/tokenize", self._tokenize),
            web.post("/v1/completions", self._completions),
            web.post("/v1/chat/completions", self._chats),
        )

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(self.models)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.json_response(self.metrics)

    async def _sources(self, request: web.Request) -> web.Response:
        return web.json_response(self.sources)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response("1.2")

    async def _tokenize(self, request: web.Request) -> web.Response:
        await self._note(request)
        if "messages" in await request.json() and self.chat_tokens is None:
            return web.json_response({"error": "prompt is missing"}, status=422)
        tokens = self.chat_tokens if "messages" in await request.json() else self.tokens
        return web.json_response({"tokens": tokens}, status=self.tokenize)

    async def _chats(self, request: web.Request) -> web.Response:
        await self._note(request)
        usage: dict[str, Any] = {"prompt_tokens": 3, "completion_tokens": 1}
        if self.chat_cached is not None:
            usage |= {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": self.chat_cached}}
        return web.json_response({"choices": [], "usage": usage}, status=self.chats)

    async def _completions(self, request: web.Request) -> web.Response:
        await self._note(request)
        if not self.takes_ids and not isinstance((await request.json())["prompt"], str):
            return web.json_response({"error": "a text, please"}, status=400)
        usage: dict[str, Any] = {"prompt_tokens": 33, "completion_tokens": 1}
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return web.json_response({"choices": [], "usage": usage}, status=self.completions)

    async def _note(self, request: web.Request) -> None:
        self.asked.append((request.path, request.headers.get("x-data-parallel-rank"), await request.json()))


@dataclass
class Checked:
    """Check of one worker; `obstacle` is the reason why its publisher is not reached."""

    answers: Answers
    server: TestServer
    obstacle: str | None = None
    has_tokenizer: bool = False
    reached: list[EventSource] = field(default_factory=list)
    agent: tuple[str, AgentHello | str] | None = None
    tokens: "Looked | None" = None
    declared: DeclaredSettings = field(default_factory=DeclaredSettings)
    ours: Callable[[InferenceRequest], Sequence[int]] | None = None
    sends: bool = True

    async def _reach_agent(
        self, worker: Worker, start_time_s: float | None
    ) -> tuple[str, AgentHello | str] | None:
        return self.agent

    async def _reach(self, worker: Worker, source: EventSource) -> str | None:
        self.reached.append(source)
        return self.obstacle

    async def findings(self, *urls: str) -> list[Finding]:
        async with session() as open_session:
            checker = Checker(
                session=open_session,
                engines=only(FakeEngine()),
                source_of=lambda facts, rank: event_source(facts, rank, 5557, 0),
                events=EventsCheck(self._reach),
                has_tokenizer=lambda model, rendering: self.has_tokenizer,
                reach_agent=self._reach_agent,
                tokens=self.tokens,
                declared=self.declared,
                sends_completions=self.sends,
                ours_of=(lambda worker: ours) if (ours := self.ours) else None,
            )
            return await check_all(checker, list(urls) or [url_of(self.server)])

    async def finding(self) -> Finding:
        (finding,) = await self.findings()
        return finding


@pytest.fixture
async def checked() -> AsyncIterator[Checked]:
    answers = Answers()
    server = await answers.serve()
    yield Checked(answers, server)
    await server.close()


pytestmark = pytest.mark.process


async def test_the_best_mode_has_no_obstacle(checked: Checked) -> None:
    finding = await checked.finding()
    name = url_of(checked.server).removeprefix("http://")
    assert replace(finding, worker=None, place=None) == Finding(
        name, Mode.VERIFIED, "fake 1.2; models m; 100 blocks of 16 tokens", obstacle=None, flags=None
    )
    assert finding.worker and finding.worker.id == name
    assert finding.lines() == [f"{name}: exact and verified  ({finding.facts})"]
    assert [source.replay_endpoint for source in checked.reached] == ["tcp://*:6557"]


async def test_the_same_prompt_is_sent_twice_to_see_it_cached(checked: Checked) -> None:
    await checked.finding()
    sent = [body for path, _, body in checked.answers.asked if path == "/v1/completions"]
    assert sent == [{"model": "m", "prompt": [1] * 33, "max_tokens": 1}] * 2


async def test_a_worker_that_refuses_token_ids_is_asked_with_a_text(checked: Checked) -> None:
    checked.answers.takes_ids = False
    (finding,) = await checked.findings()
    assert finding.mode is Mode.VERIFIED
    prompts = [body["prompt"] for path, _, body in checked.answers.asked if path == "/v1/completions"]
    assert [type(prompt) for prompt in prompts] == [list, list, str, str]


async def test_a_worker_that_reports_no_cached_tokens_is_exact_but_not_verified(checked: Checked) -> None:
    checked.answers.cached_tokens = None
    finding = await checked.finding()
    assert (finding.mode, finding.flags) == (Mode.EXACT, "--report-cached")
    assert finding.lines()[1:] == [
        "    it does not report cached tokens, so predictions cannot be verified",
        "    to reach the best mode, start the worker with:  --report-cached",
    ]


async def test_without_an_answer_it_is_not_known_what_is_reported(checked: Checked) -> None:
    checked.answers.completions = 503
    finding = await checked.finding()
    assert (finding.mode, finding.flags) == (Mode.EXACT, None)
    assert finding.obstacle and finding.obstacle.startswith("it answers no completion here")


@pytest.mark.parametrize(
    ("sources", "obstacle", "words"),
    [
        ([], None, "it publishes no KV events"),
        (
            [SOURCE | {"replay_endpoint": None}],
            None,
            "it publishes KV events at tcp://*:5557 but replays none",
        ),
        ([SOURCE], "no replay answers", "no replay answers"),
        ([SOURCE | {"replay_endpoint": None}], "no publisher answers", "no publisher answers"),
        ([{"dp_rank": 0, "endpoint": "/events"}], None, "its KV events can be polled, but it replays none"),
    ],
    ids=["no events", "no replay", "not reachable", "nothing listens", "polled"],
)
async def test_without_reachable_events_a_worker_is_approximate(
    checked: Checked, sources: list[dict[str, Any]], obstacle: str | None, words: str
) -> None:
    checked.answers.sources, checked.obstacle = sources, obstacle
    finding = await checked.finding()
    assert (finding.mode, finding.flags) == (Mode.APPROXIMATE, "--publish")
    assert words in (finding.obstacle or "")
    assert finding.lines()[-1].endswith("start the worker with:  --publish")


async def test_the_advice_is_one_restart_for_all_missing_settings(checked: Checked) -> None:
    checked.answers.sources, checked.answers.cached_tokens = [], None
    finding = await checked.finding()
    assert (finding.mode, finding.flags) == (Mode.APPROXIMATE, "--report-cached --publish")
    assert finding.obstacle == (
        "it publishes no KV events; it does not report cached tokens, so predictions cannot be verified"
    )


async def test_engines_on_one_host_are_advised_different_ports(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Advised ports follow those of engines that publish there already; each rank has one."""
    events = 'tcp://*:5557","replay_endpoint":"tcp://*:6557'
    monkeypatch.setattr(FakeEngine, "flags", EngineFlags(events, ""))
    silent = [Answers(sources=[]), Answers(sources=[])]
    silent[0].metrics = {"0": {"block_size": 16}, "1": {"block_size": 16}}
    servers = [await each.serve() for each in silent]
    findings = await checked.findings(*map(url_of, servers), url_of(checked.server))
    monkeypatch.setattr(FakeEngine, "flags", EngineFlags(f"{events}, and --events-replay-port 6557", ""))
    one_for_all = await checked.findings(*map(url_of, servers))
    for server in servers:
        await server.close()
    first = events.replace("557", "558")
    assert [each.flags for each in findings] == [first, first, events.replace("557", "560"), None]
    assert {each.flags for each in one_for_all} == {f"{events}, and --events-replay-port 6557"}


async def test_without_tokens_a_worker_is_routed_by_load(checked: Checked) -> None:
    checked.answers.tokenize = 404
    finding = await checked.finding()
    assert (finding.mode, finding.flags) == (Mode.LOAD_ONLY, "kvgate serve --tokenizer DIR")
    checked.has_tokenizer = True
    assert (await checked.finding()).mode is Mode.VERIFIED


async def test_a_tokenize_of_another_engine_is_not_used(checked: Checked) -> None:
    checked.answers.tokens = []
    assert (await checked.finding()).mode is Mode.LOAD_ONLY


BLIND = "no tokenizer is given for its model, and its own /tokenize takes no chats"


@pytest.mark.parametrize("sends", [True, False])
async def test_chats_have_a_verdict_of_their_own(checked: Checked, sends: bool) -> None:
    """SGLang 0.5.10 is such an engine: its /tokenize takes texts only."""
    checked.answers.chats, checked.sends = 200, sends
    finding = await checked.finding()
    assert (finding.chats, finding.chats_why) == (Mode.LOAD_ONLY, BLIND)
    texts = "exact and verified" if sends else "exact"
    first, *rest = finding.lines()
    assert f": texts {texts}, chats load only  (" in first
    assert (
        f"    chats: {BLIND}" in rest
        and "    to predict its chats, run:  kvgate serve --tokenizer DIR" in rest
    )
    assert finding.is_good
    sent = [path for path, _, _ in checked.answers.asked if path == "/v1/chat/completions"]
    assert len(sent) == (2 if sends else 0)


@pytest.mark.parametrize(
    ("num_tokens", "cached", "chats", "is_good"),
    [(40, 32, None, True), (41, 32, None, False), (3, None, Mode.EXACT, True)],
    ids=["alike", "other tokens", "no cached tokens"],
)
async def test_chats_are_proved_by_their_own_counts(
    checked: Checked, num_tokens: int, cached: int | None, chats: Mode | None, is_good: bool
) -> None:
    checked.answers.chats, checked.answers.chat_tokens = 200, list(range(num_tokens))
    checked.answers.chat_cached = cached
    finding = await checked.finding()
    assert (finding.mode, finding.chats, finding.is_good) == (Mode.VERIFIED, chats, is_good)
    assert is_good or "chats: kvgate has 41 tokens of a prompt for which it counts 40" in (
        finding.fault or ""
    )


@pytest.mark.parametrize(
    ("num_text", "num_chat", "fault", "chats"),
    [
        (33, 40, None, None),
        (33, 39, "chats: kvgate has 39 tokens", None),
        (34, 40, "texts: kvgate has 34 tokens", None),
        (33, 0, None, Mode.LOAD_ONLY),  # a tokenizer without a chat template
    ],
    ids=["alike", "other chats", "other texts", "no template"],
)
async def test_a_tokenizer_here_is_proved_by_a_prompt_of_each_kind(
    checked: Checked, num_text: int, num_chat: int, fault: str | None, chats: Mode | None
) -> None:
    """The worker's /tokenize takes no chats, so that its answers alone show other tokens."""

    def ours(request: InferenceRequest) -> Sequence[int]:
        return range(num_chat if request.path == "/v1/chat/completions" else num_text)

    checked.has_tokenizer, checked.ours, checked.answers.chats = True, ours, 200
    finding = await checked.finding()
    assert finding.chats is chats
    assert (finding.fault or "").startswith(fault or "") and finding.is_good is (fault is None)
    checked.answers.sources = []
    assert (await checked.finding()).is_good  # without events only the predicted counts are off


async def test_a_worker_without_chats_is_judged_by_its_texts(checked: Checked) -> None:
    assert (await checked.finding()).lines()[0].count("chats") == 0


async def test_a_publisher_that_is_reported_shows_the_block_size(checked: Checked) -> None:
    checked.answers.metrics = {}
    finding = await checked.finding()
    facts = "fake 1.2; models m; blocks of a size that its KV events show"
    assert (finding.mode, finding.facts, finding.obstacle) == (Mode.VERIFIED, facts, None)


async def test_without_a_block_size_a_worker_is_routed_by_load(checked: Checked) -> None:
    checked.answers.metrics, checked.answers.sources = {}, []
    finding = await checked.finding()
    assert (finding.mode, finding.flags, finding.facts) == (Mode.LOAD_ONLY, None, "fake 1.2; models m")
    assert "no block size" in (finding.obstacle or "")
    assert checked.answers.asked == []


async def test_workers_with_events_at_one_place_are_both_wrong(checked: Checked) -> None:
    other = await Answers().serve()
    found = await checked.findings(url_of(checked.server), url_of(other))
    await other.close()
    assert [each.mode for each in found] == [Mode.APPROXIMATE] * 2
    assert not any(each.is_good for each in found)
    for one, two in (found, found[::-1]):
        place = f"its KV events are read at tcp://127.0.0.1:5557, as are those of {two.name} "
        assert (one.fault or "").startswith(place)


async def test_workers_without_events_are_not_compared(checked: Checked) -> None:
    other, checked.obstacle = await Answers().serve(), "nothing listens"
    found = await checked.findings(url_of(checked.server), url_of(other))
    await other.close()
    assert [(each.mode, each.fault) for each in found] == [(Mode.APPROXIMATE, None)] * 2


async def test_each_rank_is_a_worker_and_is_addressed_by_its_number(checked: Checked) -> None:
    checked.answers.metrics = {"0": {"block_size": 16}, "1": {"block_size": 16}}
    checked.answers.sources = [SOURCE, SOURCE | {"dp_rank": 1}]
    findings = await checked.findings()
    assert [finding.name[-2:] for finding in findings] == ["#0", "#1"]
    assert {rank for _, rank, _ in checked.answers.asked} == {"0", "1"}


async def test_an_unreached_worker_has_its_reason(checked: Checked) -> None:
    checked.answers.health = 503
    finding = await checked.finding()
    assert finding.mode is None
    assert finding.lines()[0].endswith(": not reached")
    assert finding.lines()[1].endswith("/health answered 503")
    (gone,) = await checked.findings("http://127.0.0.1:9")
    assert gone.mode is None and "http://127.0.0.1:9/health" in (gone.obstacle or "")


async def test_an_endpoint_without_models_is_not_reached(checked: Checked) -> None:
    checked.answers.models = []
    finding = await checked.finding()
    assert finding.mode is None
    assert (finding.obstacle or "").endswith("serves no model")


@pytest.mark.parametrize("tokens", [[1, 2], [1, 3], []])
async def test_tokens_of_a_pair_are_compared(checked: Checked, tokens: list[int]) -> None:
    """Workers without /tokenize are not compared."""
    checked.answers.tokens = [1, 2]
    other = Answers(tokens=tokens, sources=[SOURCE | {"endpoint": "tcp://*:5558"}])
    server = await other.serve()
    prefill, decode = url_of(server), url_of(checked.server)
    checked.declared = DeclaredSettings({prefill: Role.PREFILL, decode: Role.DECODE}, connector="nixl")
    first, second = await checked.findings(prefill, decode)
    await server.close()
    assert first.fault is None
    if tokens == [1, 3]:
        name = prefill.removeprefix("http://")
        assert (second.fault or "").startswith(f"{name} renders prompts differently: in a text")
        assert "differ from token number 1 on, [3] and [2]" in (second.fault or "")
        assert not second.is_good
    else:
        assert second.fault is None


async def test_without_workers_there_are_no_findings(checked: Checked) -> None:
    async with session() as open_session:
        checker = Checker(
            open_session,
            only(FakeEngine()),
            lambda f, r: None,
            EventsCheck(checked._reach),
            lambda m, r: False,
        )
        assert await check_all(checker, []) == []


@pytest.mark.parametrize(
    ("owner", "engine", "flags"), [("sglang", "sglang", "--kv-events-config"), ("library", "openai", None)]
)
async def test_each_worker_is_checked_as_its_own_engine(owner: str, engine: str, flags: str | None) -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": owner}]})

    async def info(request: web.Request) -> web.Response:
        return web.json_response({"version": "0.5.23", "page_size": 1, "disaggregation_mode": "decode"})

    server = await serve(web.get("/v1/models", models), web.get("/server_info", info))
    async with session() as open_session:
        (finding,) = await check_all(
            Checker(
                open_session,
                Engines(ENGINES),
                lambda facts, rank: event_source(facts, rank, 5557, 0),
                EventsCheck(lambda worker, source: asyncio.sleep(0, None)),
                lambda model, rendering: True,
            ),
            [url_of(server)],
        )
    await server.close()
    assert (finding.mode, finding.facts.split()[0]) == (Mode.APPROXIMATE, engine)
    assert (finding.obstacle or "").startswith("it publishes no KV events; ")
    assert (flags or "") in (finding.flags or "") and bool(finding.flags) is bool(flags)
    assert ("decode worker by bootstrap" in finding.facts) is (engine == "sglang")


@pytest.mark.parametrize(
    ("reported", "mode", "words"),
    [
        (AgentStatus(StreamState.EXACT), Mode.VERIFIED, "is exact: 12 blocks"),
        (
            AgentStatus(StreamState.BLIND, "a gap"),
            Mode.APPROXIMATE,
            "is blind (a gap): 12 blocks",
        ),
        ("no answer", Mode.APPROXIMATE, "cannot be used: no answer"),
    ],
)
async def test_an_agent_that_knows_all_blocks_makes_a_worker_exact(
    checked: Checked, reported: AgentStatus | str, mode: Mode, words: str
) -> None:
    """Worker without events of its own."""
    checked.answers.sources = []
    hello = AgentHello("http://w:1", 0, 16, root_hash("root"), reported, num_blocks=12)  # type: ignore[arg-type]
    checked.agent = "w:7070", reported if isinstance(reported, str) else hello
    finding = await checked.finding()
    assert finding.mode is mode
    assert finding.lines()[1] == f"    its agent at w:7070 {words}"


@dataclass(frozen=True)
class Seen:
    note: str
    fault: str | None = None


@dataclass
class Looked:
    """Catalog with a scripted verdict, which asks for tokens first."""

    sights: list[Seen]
    asked: list[str] = field(default_factory=list)

    async def look(self, worker: Worker, ask: Any) -> list[Seen]:
        self.asked.append(worker.id)
        assert await ask("/tokenize", {"model": "m", "prompt": "a"})
        return self.sights


@pytest.mark.parametrize("fault", [None, "its tokens are others"])
async def test_a_worker_with_other_tokens_than_ours_is_a_fault(checked: Checked, fault: str | None) -> None:
    checked.has_tokenizer, checked.tokens = (
        True,
        Looked([Seen("tokens of m: local"), Seen("of n: none", fault)]),
    )
    finding = await checked.finding()
    assert len(checked.tokens.asked) == 1
    assert (finding.mode, finding.fault, finding.is_good) == (Mode.VERIFIED, fault, fault is None)
    wrong = [] if fault is None else [f"    WRONG: {fault}"]
    assert finding.lines()[1:] == ["    tokens of m: local", "    of n: none", *wrong]


async def test_an_unreached_worker_is_asked_for_no_tokens(checked: Checked) -> None:
    checked.tokens = Looked([])
    checked.answers.health = 503
    assert not (await checked.finding()).is_good
    assert checked.tokens.asked == []
