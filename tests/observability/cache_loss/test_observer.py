"""Counts of the cache loss observer; test_explainer.py has the attribution itself."""

import asyncio
import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.multimodal import BEFORE_MEDIA
from gateway.core.outcome import Outcome
from gateway.core.usage import Usage
from gateway.core.worker import WorkerId
from gateway.observability.cache_loss import observer
from gateway.observability.cache_loss.observer import CacheLoss, keep_explained
from tests.support.patience import until
from tests.support.worlds.cache_loss import CacheLossWorld

PROMPT = list(range(200))


def test_unseen_tokens_are_new() -> None:
    world = CacheLossWorld()
    world.ask(PROMPT)
    shown = world.losses.describe()
    assert (shown["computed_tokens"], shown["new_tokens"], shown["causes"], shown["largest"]) == (
        200,
        200,
        [],
        [],
    )


def test_an_answer_without_cached_tokens_is_not_counted() -> None:
    world = CacheLossWorld()
    world.answer(world.send(PROMPT), PROMPT, None)
    assert world.losses.num_computed_tokens == 0


def test_a_prompt_without_a_tokenizer_is_unexplained() -> None:
    world = CacheLossWorld()
    world.answer(world.send(PROMPT, size=None), [], 50)
    assert world.losses.unexplained == {"unknown_prompt": 150}
    assert world.losses.num_computed_tokens == 150


@pytest.mark.parametrize(("cached", "num_new"), [(0, 200), (150, 50), (500, 0)])
def test_image_tokens_are_neither_new_nor_lost(cached: int, num_new: int) -> None:
    """The engine makes an image's tokens: kvgate cannot know whether they were cached before."""
    world = CacheLossWorld()
    decision = world.send(PROMPT, source=BEFORE_MEDIA)
    world.answer(decision, PROMPT, cached, num=1200)
    losses = world.losses
    assert (losses.num_new_tokens, losses.num_computed_tokens) == (num_new, 1200 - cached)
    assert losses.unexplained == {"behind_media": 1200 - max(cached, 200)}


def test_requests_beyond_the_queue_are_counted_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "MAX_QUEUED", 2)
    world = CacheLossWorld()
    decisions = [world.send(PROMPT) for _ in range(4)]
    for decision in decisions:
        world.answer(decision, PROMPT, 0)
    assert world.losses.unexplained == {"dropped": 400}
    assert world.losses.num_computed_tokens == 800


def test_answers_beyond_the_queue_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "MAX_QUEUED", 0)
    world = CacheLossWorld()
    world.answer(world.send(PROMPT), PROMPT, 0)
    assert world.losses.unexplained == {"dropped": 200}


def test_long_prompts_fill_the_queue_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "MAX_QUEUED_TOKENS", 300)
    world = CacheLossWorld()
    decisions = [world.send(PROMPT) for _ in range(4)]
    for decision in decisions:
        world.answer(decision, PROMPT, 0)
    assert world.losses.unexplained == {"dropped": 400}
    world.ask(PROMPT)
    assert world.losses.unexplained == {"dropped": 400}


def test_large_bodies_fill_the_queue_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "MAX_QUEUED_BYTES", 1500)
    world = CacheLossWorld()
    image = {"type": "image_url", "image_url": {"url": "data:," + "x" * 1000}}
    decisions = [world.send(PROMPT, messages=[{"role": "user", "content": [image]}]) for _ in range(4)]
    for decision in decisions:
        world.answer(decision, PROMPT, 0)
    assert world.losses.unexplained == {"dropped": 400}
    world.ask(PROMPT)
    assert world.losses.unexplained == {"dropped": 400}


def test_requests_that_never_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "MAX_OPEN", 2)
    world = CacheLossWorld()
    first, *_ = [world.send(PROMPT) for _ in range(3)]
    world.work()
    world.answer(first, PROMPT, 0)
    assert world.losses.unexplained == {"dropped": 200}


@pytest.mark.parametrize("usage", [None, Usage(200, 1, None)])
def test_requests_that_end_without_reported_usage_are_explained_and_forgotten(usage: Usage | None) -> None:
    world = CacheLossWorld()
    prompt = random.Random(1).choices(range(30_000), k=2000)
    decision = world.send(prompt)
    world.losses.finished(decision, Outcome("client gone", 499, None, usage))
    world.work()
    assert "0 open" in repr(world.losses)
    assert world.losses.describe()["memory"]["entries"] == 1
    world.answer(decision, prompt, 0)
    assert world.losses.unexplained == {"dropped": 2000}


def test_a_reported_answer_is_settled_whenever_the_request_ends() -> None:
    world = CacheLossWorld()
    decision, usage = world.send(PROMPT), Usage(200, 1, 0)
    world.losses.answered(decision, PROMPT, usage)
    world.losses.finished(decision, Outcome("ended", 200, 0.1, usage))
    world.work()
    assert (world.losses.num_new_tokens, world.losses.unexplained.total()) == (200, 0)
    assert "0 queued, 0 open" in repr(world.losses)


def test_lost_blocks_are_bounded_and_missed_ones_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "MAX_NOTED_BLOCKS", 10)
    world = CacheLossWorld()
    world.losses.forget(bytes(8 * 20))
    world.evict(PROMPT)
    assert world.losses.describe()["missed_blocks"] == 12
    world.work()
    world.evict(PROMPT)
    assert world.losses.num_missed_blocks == 12 + 1  # one more than fits is taken


def test_notes_are_kept_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "BLOCKS_AT_ONCE", 5)
    world = CacheLossWorld()
    world.evict(PROMPT)
    assert len(world.losses._queue) == 3
    world.losses.end(WorkerId("a"))
    world.evict(PROMPT)
    assert len(world.losses._queue) == 7


def test_a_worker_that_clears_again_and_again_is_noted_once() -> None:
    world = CacheLossWorld()
    for worker in ("a", "a", "b", "a", "a"):
        world.losses.end(WorkerId(worker))
    num_steps = 0
    while world.losses.step():
        num_steps += 1
    assert num_steps == 3


def test_routing_away_shows_the_avoided_tokens() -> None:
    world = CacheLossWorld()
    world.ask(PROMPT, a=0)
    world.ask(PROMPT, b=0, a=192, booked=5000)
    assert world.causes() == {"routed_away": 192}
    shown = world.losses.describe()
    assert shown["avoided_queue_tokens"] == 5000 + 8 - 200
    (worst,) = shown["largest"]
    assert (worst["worker"], worst["holder"], worst["avoided_queue_tokens"]) == ("b", "a", 4808)


def test_routing_away_without_a_gain_counts_as_a_loss() -> None:
    world = CacheLossWorld()
    world.ask(PROMPT, b=0, a=192)
    shown = world.losses.describe()
    assert (shown["avoided_queue_tokens"], shown["largest"][0]["avoided_queue_tokens"]) == (0, 8 - 200)


ACTS = st.sampled_from(("ask", "evict", "end", "forget", "drift"))


@given(st.integers(0, 1 << 30), st.lists(ACTS, min_size=1, max_size=30))
@settings(max_examples=150)
def test_causes_and_new_text_add_up_in_any_order(seed: int, acts: list[str]) -> None:
    """Any order of requests, losses and reports, with nonsensical engine figures too."""
    world, rng = CacheLossWorld(), random.Random(seed)
    pieces = [[rng.randrange(500) for _ in range(rng.randrange(0, 120))] for _ in range(5)]
    computed = 0
    for act in acts:
        prompts = [sum(rng.choices(pieces, k=3), [1]) for _ in range(rng.choice((1, 1, 1, 2)))]
        prompt, worker = prompts[-1], rng.choice("ab")
        match act:
            case "evict":
                world.evict(prompt, rng.randrange(100))
            case "end":
                world.losses.end(WorkerId(worker))
            case "forget":
                world.losses.forget(b"".join(b.to_bytes(8, "little") for b in world.blocks(prompt)))
            case "drift":
                world.losses.set_drifting(WorkerId(worker), rng.random() < 0.5)
            case "ask":
                num = sum(map(len, prompts))
                overlaps = {name: rng.randrange(num // 16 + 1) * 16 for name in rng.choice(("ab", "ba"))}
                salt, model = rng.choice((None, None, "s")), rng.choice(("m", "m", "tuned"))
                decision = world.send(*prompts, salt=salt, model=model, **overlaps)
                num_reported, cached = rng.choice((num, num, num + 7)), rng.randrange(num + 9)
                world.answer(decision, prompt, cached, num=num_reported, salt=salt)
                computed += max(num_reported - cached, 0)
    losses = world.losses
    assert losses.num_computed_tokens == computed
    explained = losses.num_new_tokens + losses.recomputed.total()
    assert explained + losses.unexplained.total() == computed
    assert set(losses.unexplained) <= {"several_prompts"}
    assert all(num > 0 for num in losses.recomputed.values()) and losses.num_new_tokens >= 0


async def test_losses_are_explained_between_requests() -> None:
    world = CacheLossWorld()
    task = asyncio.get_running_loop().create_task(keep_explained(world.losses))
    try:
        decision = world.send(PROMPT)
        assert world.losses.is_busy
        await until(lambda: not world.losses.is_busy)
        assert repr(world.losses).startswith("CacheLoss(0 queued, 1 open")
        world.answer(decision, PROMPT, 0)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_the_observer_fits_the_router_and_the_index() -> None:
    from gateway.index.base import Losses
    from gateway.observability.observers import Observers

    losses = CacheLoss(lambda model, tokens: None)
    observers = Observers()
    observers.decided.append(losses.decided)
    observers.answered.append(losses.answered)
    other: Losses = losses
    assert other is losses
