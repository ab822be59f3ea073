import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engines import ENGINES
from gateway import request as make_request
from gateway.core.blocks import BlockHash, tokens_of
from gateway.core.decision import Candidate, Choice, Decided, Decision, Prompt, Query
from gateway.core.eligibility import Eligibility
from gateway.core.errors import InvalidRequest, NoWorker, UnknownModel
from gateway.core.hit_rule import HitRule
from gateway.core.kv_events import BlocksRemoved, BlocksStored
from gateway.core.multimodal import BEFORE_MEDIA, Links
from gateway.core.rendering import Rendering
from gateway.core.usage import Usage
from gateway.core.value import astuple
from gateway.core.worker import ServedModel, WorkerId
from gateway.policies.baselines import RoundRobin
from gateway.policies.latency_slo import LatencySlo
from gateway.policies.prefix_overlap import PrefixOverlap
from gateway.routing.candidates import max_hit_blocks
from gateway.routing.router import LOOK_EVERY_S
from tests.support.worlds.router import RouterWorld, worker


class Seen:
    def __init__(self) -> None:
        self.num_blocks: list[int] = []
        self.usages: list[Usage] = []

    def decided(self, decided: Decided) -> None:
        decision, prompt, blocks, request = decided.decision, decided.prompt, decided.blocks, decided.request
        assert len(prompt.tokens) == 1 and request.model == decision.model
        self.num_blocks.append(sum(map(len, blocks)))

    def answered(self, decision: Decision, blocks: Sequence[BlockHash], usage: Usage) -> None:
        self.usages.append(usage)


def observe_with(world: RouterWorld, seen: Seen) -> None:
    world.router.observers.decided.append(seen.decided)
    world.router.observers.answered.append(seen.answered)


def test_the_holder_is_chosen_and_its_overlap_reported() -> None:
    world = RouterWorld(worker("a"), worker("b"))
    world.store("b", range(64))
    decision = world.decide([*range(64), *range(900, 950)])
    assert (decision.worker.id, decision.overlap_tokens, decision.num_tokens) == ("b", 64, 114)
    assert {c.id: c.overlap_tokens for c in decision.candidates} == {"a": 0, "b": 64}
    assert decision.reason == "longest cached prefix"
    assert min(astuple(decision.timings_s)) > 0


def test_the_longest_prefix_is_known_while_it_is_computed() -> None:
    world = RouterWorld(worker("a"), worker("b"))
    first = world.decide([*range(96), 1]).query
    assert (first.cached, first.cached_tokens, first.computing_tokens) == (None, 0, 0)
    sent = world.decide([*range(96), 2]).query
    assert sent.cached is not None
    assert (sent.cached_tokens, sent.computing_tokens) == (96, 96)
    world.store("a", range(64))
    half = world.decide([*range(96), 3]).query
    assert (half.cached, half.cached_tokens, half.computing_tokens) == (sent.cached, 96, 32)
    world.store("a", range(96))
    assert world.decide([*range(96), 4]).query.computing_tokens == 0
    assert world.decide([7] * 96).query.cached is None


def test_the_last_token_is_never_cached() -> None:
    world = RouterWorld(worker("a"))
    world.store("a", range(64))
    assert world.decide(range(64)).overlap_tokens == 48
    assert [max_hit_blocks(n, 16) for n in (0, 1, 16, 17, 33)] == [0, 0, 0, 1, 2]


def test_an_engine_that_drops_the_last_block_of_a_hit_has_one_less() -> None:
    """A fleet in which one of two equal caches is behind speculation, as in a rolling upgrade."""
    world = RouterWorld(worker("a"), replace(worker("b"), hit_rule=HitRule(drops_last=True)))
    world.store("a", range(64))
    world.store("b", range(64))
    decision = world.decide([*range(64), *range(900, 950)])
    assert {c.id: c.overlap_tokens for c in decision.candidates} == {"a": 64, "b": 48}


def test_the_next_request_sees_earlier_bookings() -> None:
    world = RouterWorld(worker("a"), worker("b"))
    bursts = [world.decide(range(i * 1000, i * 1000 + 500)).worker.id for i in range(8)]
    assert sorted(bursts) == ["a"] * 4 + ["b"] * 4


def test_equal_prompts_in_flight_share_a_worker_while_it_pays() -> None:
    world = RouterWorld(worker("a"), worker("b"))
    first = world.decide(range(800))
    second = world.decide(range(800))
    assert second.overlap_tokens == (784 if second.worker.id == first.worker.id else 0)
    assert [c.overlap_tokens for c in second.candidates if c.id == first.worker.id] == [784]


def test_a_preview_equals_the_next_decision_and_changes_nothing() -> None:
    world, seen = RouterWorld(worker("a"), worker("b")), Seen()
    world.store("b", range(64))
    observe_with(world, seen)
    world.router.policy = RoundRobin()
    request = make_request("/v1/completions", {"model": "m", "prompt": list(range(80)), "user": "u"})
    previews = [world.router.preview(request) for _ in range(3)]
    assert [preview.worker.id for preview in previews] == ["a"] * 3
    assert {c.id: c.overlap_tokens for c in previews[0].candidates} == {"a": 0, "b": 64}
    assert (previews[0].query, seen.num_blocks) == (world.decide(range(80), user="u").query, [5])
    assert world.router.ledger.load(WorkerId("a")).num_in_flight == 1
    assert [world.router.preview(request).worker.id, world.decide(range(80)).worker.id] == ["b", "b"]


def test_a_decision_has_the_query_and_the_prediction_of_its_policy() -> None:
    world = RouterWorld(worker("a", ServedModel("lora", "root", "adapter")))
    world.router.policy = LatencySlo()
    decision = world.decide(range(300), model="lora", user="u")
    assert decision.query is not None and decision.ttft_s == decision.terms[0]
    assert (decision.query.session, decision.query.adapter, decision.query.num_tokens) == (
        "u",
        "adapter",
        300,
    )
    again, other = world.decide(range(900), model="lora"), world.decide(range(1, 900), model="lora")
    assert again.query is not None and other.query is not None
    assert decision.query.prefix == again.query.prefix != other.query.prefix


def test_finishing_releases_once_and_unsent_blocks_are_not_assumed() -> None:
    world = RouterWorld(worker("a"))
    decision = world.decide(range(64))
    assert world.router.ledger.load(WorkerId("a")).num_in_flight == 1
    assert [world.router.finish(decision), world.router.finish(decision)] == [True, False]
    assert world.router.ledger.load(WorkerId("a")).num_in_flight == 0
    assert world.decide(range(64)).overlap_tokens == 0


def test_observers_see_decisions_and_reported_usage_once() -> None:
    world, seen = RouterWorld(worker("a"), worker("none", size=None)), Seen()
    observe_with(world, seen)
    decision = world.decide(range(40))
    assert seen.num_blocks == [2 if decision.worker.id == "a" else 0]
    world.router.finish(decision, Usage(prompt_tokens=40))
    world.router.finish(decision, Usage(prompt_tokens=41))
    assert [usage.prompt_tokens for usage in seen.usages] == [40]
    world.router.finish(world.decide(range(40)))
    assert len(seen.num_blocks) == 2 and len(seen.usages) == 1


def test_an_observer_that_raises_is_disabled_and_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    for fails in ("decided", "answered"):
        caplog.clear()
        world, broken, seen = RouterWorld(worker("a")), Seen(), Seen()
        setattr(broken, fails, None)
        observe_with(world, broken)
        observe_with(world, seen)
        for _ in range(3):
            decision = world.decide(range(40))
            assert world.router.finish(decision, Usage(prompt_tokens=40))
        assert world.router.ledger.load(WorkerId("a")).num_in_flight == 0
        assert (len(seen.num_blocks), len(seen.usages)) == (3, 3)
        assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_blocks_of_a_request_are_assumed_until_their_events_are_due() -> None:
    world = RouterWorld(worker("a"))
    decision = world.decide(range(64))
    world.router.first_token(decision)
    assert world.router.ledger.load(WorkerId("a")).booked_tokens == 0
    world.router.finish(decision)
    assert world.decide([*range(64), 1]).overlap_tokens == 64
    world = RouterWorld(worker("a"))
    decision = world.decide(range(64))
    world.router.first_token(decision)
    world.router.finish(decision)
    world.now = 2.0
    assert world.decide([*range(64), 1]).overlap_tokens == 0


def test_offloaded_blocks_cost_a_transfer() -> None:
    world = RouterWorld(worker("a:1"), worker("b:1"))
    world.store("a:1", range(64))
    names = [hash((tuple(range(i + 16)), 16)) & (2**64 - 1) for i in range(0, 64, 16)]
    world.index.apply(WorkerId("a:1"), BlocksStored(names[1:], None, tokens_of([]), 0, None, "CPU"))
    world.index.apply(WorkerId("a:1"), BlocksRemoved(names[:1:-1]))
    decision = world.decide(range(100))
    assert (decision.worker.id, decision.overlap_tokens) == ("a:1", 64)
    assert [dict(candidate.offloaded) for candidate in decision.candidates] == [{("CPU",): 32}, {}]
    assert decision.terms == (pytest.approx(36 + 0.2 * 32), 100)
    assert world.records(decision) == [{"CPU": 32}, {}]


def test_a_sliding_window_limits_overlap_by_the_end_of_the_prompt() -> None:
    """The last token is always computed: three of four blocks can be reused, if the window is cached."""
    world = RouterWorld(worker("a:1"))
    world.store("a:1", range(64))
    names = [hash((tuple(range(i + 16)), 16)) & (2**64 - 1) for i in range(0, 64, 16)]
    window = BlocksStored(names[3:], None, tokens_of(range(64)), 16, None, "GPU", 1, "sliding_window", 17)
    world.index.apply(WorkerId("a:1"), window)
    assert [world.decide(range(n)).overlap_tokens for n in (65, 64)] == [64, 0]


def test_the_next_question_about_an_image_goes_to_its_worker() -> None:
    world = RouterWorld(worker("a:1"), worker("b:1"), worker("c:1"))
    world.store("b:1", range(32))
    chat = make_request("/v1/chat/completions", {"model": "m", "messages": []})

    def ask(*links: int) -> Decision:
        behind = Links(list(map(BlockHash, links)), [500] * len(links))
        return world.router.decide(chat, prompt=Prompt((tokens_of(range(40)),), BEFORE_MEDIA, None, behind))

    first = ask(1)
    assert (first.worker.id, first.overlap_tokens, first.uncached_tokens) == ("b:1", 32, 8)
    chosen = next(c for c in first.candidates if c.id == "b:1")
    assert (chosen.uncached_tokens, chosen.assumed_tokens) == (508, 0)
    world.store("b:1", range(32))  # no event is about the image, so its prefill is not over
    world.now += LOOK_EVERY_S
    other = ask(2)
    assert other.worker.id != "b:1"
    for decision in (first, other):
        world.router.first_token(decision)
        world.router.finish(decision)
    world.now += 100.0
    for link, place in ((1, first), (2, other)):
        again = ask(link, 3)
        assert again.worker.id == place.worker.id
        chosen = next(c for c in again.candidates if c.id == place.worker.id)
        assert (chosen.assumed_tokens, again.overlap_tokens) == (500, chosen.overlap_tokens)
        world.router.finish(again)


def test_workers_with_different_block_sizes_work_together() -> None:
    world = RouterWorld(worker("a", size=16), worker("b", size=64))
    world.store("a", range(32), 16)
    world.store("b", range(128), 64)
    decision = world.decide(range(200))
    assert {c.id: c.overlap_tokens for c in decision.candidates} == {"a": 32, "b": 128}


def test_names_of_one_root_share_blocks_and_adapters_do_not() -> None:
    names = (
        ServedModel("m", "root"),
        ServedModel("alias", "root"),
        ServedModel("lora", "root", adapter="lora"),
    )
    world = RouterWorld(worker("a", *names))
    world.store("a", range(64))
    assert world.decide([*range(64), 1], model="alias").overlap_tokens == 64
    assert world.decide([*range(64), 1], model="lora").overlap_tokens == 0


def test_a_salt_separates_prompts() -> None:
    world = RouterWorld(worker("a"))
    world.store("a", range(64))
    assert world.decide([*range(64), 1], cache_salt="s").overlap_tokens == 0


def test_overlap_of_batched_prompts_adds_up() -> None:
    world = RouterWorld(worker("a"))
    world.store("a", range(32))
    decision = world.decide([[*range(32), 5], [*range(32), 6]])  # type: ignore[list-item]
    assert (decision.num_tokens, decision.overlap_tokens) == (66, 64)


def test_a_worker_without_block_size_is_routed_by_load() -> None:
    world = RouterWorld(worker("a", size=None), worker("b", size=None))
    chosen = {world.decide(range(100)).worker.id for _ in range(2)}
    assert chosen == {"a", "b"}


def test_models_and_exclusions() -> None:
    world = RouterWorld(worker("a"), worker("b", ServedModel("n", "n")))
    with pytest.raises(UnknownModel):
        world.decide([1], model="x")
    request = make_request("/v1/completions", {"model": "m", "prompt": [1]})
    with pytest.raises(NoWorker):
        world.router.decide(request, exclude={WorkerId("a")})
    assert "open=0" in repr(world.router)


def test_decision_ids_cannot_be_guessed_from_one_another() -> None:
    world = RouterWorld(worker("a"))
    ids = {world.decide([1]).id for _ in range(50)}
    assert len(ids) == 50
    assert all(len(i) == 24 for i in ids)


def test_events_end_the_prefill_of_an_unstreamed_request() -> None:
    """An unstreamed answer shows no first token; the events of its blocks do."""
    world = RouterWorld(worker("a"), worker("b"))
    first = world.decide(range(800))
    name = first.worker.id
    assert world.router.ledger.load(name).booked_tokens == 800
    world.store(name, range(800))
    world.now += LOOK_EVERY_S
    second = world.decide([*range(800), 5, 6])
    assert world.router.ledger.load(name).booked_tokens == (2 if second.worker.id == name else 0)
    assert (second.worker.id, second.overlap_tokens) == (name, 800)
    assert [world.router.finish(first), world.router.finish(second)] == [True, True]


def test_hashes_computed_ahead_are_those_of_the_decision() -> None:
    world = RouterWorld(worker("a"), worker("b"))
    ids = list(range(32 * 16 * 3))
    world.store("a", ids)
    request = make_request("/v1/completions", {"model": "m", "prompt": ids})
    world.router.hasher(request)(world.router.tokenize(request))
    assert len(world.router._lookups._hashes) == 3
    assert world.decide(ids).overlap_tokens == len(ids) - 16  # the last token is always computed
    assert len(world.router._lookups._hashes) == 3


def test_no_hashes_are_computed_ahead_for_an_unknown_model() -> None:
    with pytest.raises(UnknownModel):
        RouterWorld(worker("a")).router.hasher(make_request("/v1/completions", {"model": "x", "prompt": [1]}))


def test_overlap_is_weighted_by_the_confidence_in_its_worker() -> None:
    world = RouterWorld(worker("a"), worker("b"))
    world.store("a", range(320))
    world.store("b", range(160))
    prompt = [*range(320), *range(900, 950)]
    first = world.decide(prompt)
    assert first.worker.id == "a"
    world.router.finish(first)
    member = world.fleet.get(WorkerId("a"))
    assert member is not None
    member.confidence = 0.25
    decision = world.decide(prompt)
    assert decision.worker.id == "b"
    overlaps = {c.id: (c.overlap_tokens, c.uncached_tokens, c.confidence) for c in decision.candidates}
    assert overlaps == {"a": (320, 290, 0.25), "b": (160, 210, 1.0)}


def test_confirmed_overlap_is_separate_from_assumed_overlap() -> None:
    world = RouterWorld(worker("a"))
    world.store("a", range(32))
    first = world.decide(range(100))
    second = world.decide(range(100))
    assert (first.overlap_tokens, first.confirmed_tokens) == (32, 32)
    assert (second.overlap_tokens, second.confirmed_tokens) == (96, 32)


def test_no_hit_is_predicted_where_the_engine_reads_no_cache() -> None:
    world = RouterWorld(worker("a"))
    world.store("a", range(64))
    decision = world.decide(range(100), prompt_logprobs=1)
    assert (decision.overlap_tokens, decision.uncached_tokens) == (0, 100)
    assert decision.candidates[0].uncached_tokens == 100


def test_policies_get_the_tenant_and_the_priority_of_vllm_negated() -> None:
    world, seen = RouterWorld(worker("a")), list[Query]()

    class Sees(PrefixOverlap):
        def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
            seen.append(query)
            return super().choose(query, candidates, rng)

    world.router.policy = Sees()
    request = make_request("/v1/completions", {"model": "m", "prompt": [1, 2], "priority": -3})
    request.tenant, request.slo_ttft_s, request.queued_s = "acme", 1.5, 0.25
    assert world.router.decide(request).query == seen[0]
    assert (seen[0].tenant, seen[0].priority, seen[0].slo_ttft_s, seen[0].queued_s) == ("acme", 3, 1.5, 0.25)


def test_full_workers_are_excluded_except_for_retries() -> None:
    world = RouterWorld(worker("a"), worker("b"))
    world.router.spare = lambda eligible: [each for each in eligible if each.member.worker.id == "b"]
    request = make_request("/v1/completions", {"model": "m", "prompt": [1, 2]})
    assert {world.router.decide(request).worker.id for _ in range(4)} == {"b"}
    assert world.router.decide(request, exclude=[WorkerId("b")], attempt=2).worker.id == "a"


def test_each_end_of_a_booking_is_reported() -> None:
    world, freed = RouterWorld(worker("a")), list[str]()
    world.router.on_freed = freed.append
    decision = world.decide([1, 2, 3])
    assert freed == []
    world.router.first_token(decision)
    assert freed == ["a"]
    world.router.finish(decision)
    world.router.finish(decision)
    assert freed == ["a", "a"]


# engines of several renderings


def test_each_worker_is_looked_up_by_its_engine_s_rendering() -> None:
    sglang = Rendering("sglang", (0, 5, 23))
    world = RouterWorld(worker("v"), replace(worker("s"), rendering=sglang))
    seen: list[Decided] = []
    world.router.observers.decided.append(seen.append)
    ours, theirs = list(range(80)), [*range(500, 600)]
    prompt = Prompt(
        (tokens_of(ours),), "fastokens", others={sglang: Prompt((tokens_of(theirs),), "tokenizers")}
    )
    asked = make_request("/v1/completions", {"model": "m", "prompt": "x"})
    world.store("v", ours[:32])
    world.store("s", theirs[:64])
    decision = world.router.decide(asked, prompt=prompt)
    assert {c.id: (c.overlap_tokens, c.uncached_tokens) for c in decision.candidates} == {
        "v": (32, 48),
        "s": (64, 36),
    }
    assert (decision.worker.id, decision.num_tokens, decision.prompt_from) == ("s", 100, "tokenizers")
    assert [list(each) for each in seen[0].prompt.tokens] == [theirs] and len(seen[0].blocks[0]) == 6
    assert len(world.router.asked_of(asked, prompt)) == 2


def test_a_worker_without_a_prompt_of_its_rendering_has_no_overlap() -> None:
    sglang = Rendering("sglang", (0, 5, 23))
    world = RouterWorld(worker("v"), replace(worker("s"), rendering=sglang))
    ids = list(range(80))
    world.store("s", ids)
    prompt = Prompt((tokens_of(ids),), "fastokens", others={sglang: Prompt((), "failed")})
    decision = world.router.decide(
        make_request("/v1/completions", {"model": "m", "prompt": "x"}), prompt=prompt
    )
    assert [c.overlap_tokens for c in decision.candidates] == [0, 0]


def test_a_list_as_prompt_goes_to_no_engine_that_takes_texts_only() -> None:
    world = RouterWorld(replace(worker("text"), engine="mlx"), replace(worker("any"), engine="vllm"))
    world.fleet.eligibility = Eligibility(ENGINES)
    world.fleet.judge_again()
    for prompt in ([1, 2, 3], [[1], [2]], ["a", "b"]):
        request = make_request("/v1/completions", {"model": "m", "prompt": prompt})
        assert world.router.decide(request, prompt=Prompt((), "none")).worker.id == "any"
    world.fleet.drop(WorkerId("any"))
    with pytest.raises(InvalidRequest, match="one string as 'prompt'"):
        world.router.decide(request, prompt=Prompt((), "none"))
    text = make_request("/v1/completions", {"model": "m", "prompt": "a"})
    assert world.router.decide(text, prompt=Prompt((), "none")).worker.id == "text"
