"""Cause of each computed token: a row is one event in the life of a prompt."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.core.worker import WorkerId
from gateway.observability.cache_loss.explainer import DecidedPrompt
from gateway.observability.cache_loss.observer import CacheLoss
from tests.support.worlds.cache_loss import CacheLossWorld

A = WorkerId("a")


def text(seed: int, num: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(8000) for _ in range(num)]


PROMPT = text(1, 200)
"""Prompt of which 192 tokens are in full blocks."""


def first_at_a(world: CacheLossWorld) -> None:
    world.ask(PROMPT, a=0)


def nothing_else(world: CacheLossWorld) -> None:
    pass


def restart(world: CacheLossWorld) -> None:
    world.losses.end(A)


def restart_and_sweep(world: CacheLossWorld) -> None:
    world.losses.end(A)
    world.losses.forget(b"".join(block.to_bytes(8, "little") for block in world.blocks(PROMPT)))


def evict_all(world: CacheLossWorld) -> None:
    world.evict(PROMPT)


def evict_the_tail(world: CacheLossWorld) -> None:
    world.evict(PROMPT, 96)


def drift(world: CacheLossWorld) -> None:
    world.losses.set_drifting(A, True)


@pytest.mark.parametrize(
    ("befell", "overlaps", "cached", "causes"),
    [
        (nothing_else, {"a": 192}, 192, {}),
        (nothing_else, {"a": 0}, 0, {"evicted": 192}),  # no event reported it, but it is not cached
        (nothing_else, {"a": 192}, 0, {"evicted": 192}),  # a worker without events: thought to hold it
        (nothing_else, {"b": 0}, 0, {"worker_restarted": 192}),  # a is gone
        (evict_all, {"a": 0}, 0, {"evicted": 192}),
        (evict_all, {"b": 0, "a": 0}, 0, {"evicted": 192}),
        (evict_all, {"b": 0}, 0, {"evicted": 192}),
        (evict_the_tail, {"a": 96}, 96, {"evicted": 96}),
        (evict_the_tail, {"b": 0, "a": 96}, 0, {"routed_away": 96, "evicted": 96}),
        (evict_all, {"b": 0, "a": 0, "c": 192}, 0, {"routed_away": 192}),
        (nothing_else, {"b": 0, "a": 192}, 0, {"routed_away": 192}),
        (nothing_else, {"b": 64, "a": 192}, 64, {"routed_away": 128}),
        (nothing_else, {"b": 192, "a": 64}, 192, {}),
        (nothing_else, {"b": 192, "a": 192}, 0, {"routed_away": 192}),  # b was to get it from another request
        (restart, {"a": 0}, 0, {"worker_restarted": 192}),
        (restart_and_sweep, {"a": 0}, 0, {"worker_restarted": 192}),
        (restart, {"b": 0, "a": 0}, 0, {"worker_restarted": 192}),
        (drift, {"a": 0}, 0, {"tokenizer_drift": 192}),
        (drift, {"b": 0, "a": 192}, 0, {"routed_away": 192}),
    ],
)
def test_a_repeated_prompt_has_the_cause_of_its_loss(
    befell: Callable[[CacheLossWorld], None], overlaps: dict[str, int], cached: int, causes: dict[str, int]
) -> None:
    world = CacheLossWorld()
    first_at_a(world)
    befell(world)
    world.ask(PROMPT, cached, **overlaps)
    assert world.causes() == causes


def test_blocks_evicted_between_the_decision_and_the_run() -> None:
    world = CacheLossWorld()
    world.ask(PROMPT, b=0)
    decision = world.send(PROMPT, a=192, b=0)  # reported by a's events
    world.work()
    world.evict(PROMPT)
    world.answer(decision, PROMPT, 0)
    assert world.causes() == {"evicted": 192}


def test_prompts_that_are_computed_at_the_same_time_are_no_loss() -> None:
    """No worker had cached the tokens yet when the second prompt was sent."""
    world = CacheLossWorld()
    first, second = world.send(PROMPT, a=0), world.send(PROMPT, a=192)
    world.answer(first, PROMPT, 0)
    world.answer(second, PROMPT, 0)
    assert world.causes() == {}


def test_a_worker_that_restarts_twice_and_one_that_evicts_are_distinguished() -> None:
    world = CacheLossWorld()
    first_at_a(world)
    world.losses.end(A)
    long = [*PROMPT, *text(2, 100)]
    world.ask(long, 0, a=0)
    world.evict(long, 192)
    world.losses.end(A)
    world.ask(long, 0, a=0)
    assert world.causes() == {"worker_restarted": 192 + 192, "evicted": 96}


def test_the_holder_of_lost_tokens_is_named() -> None:
    world = CacheLossWorld()
    world.ask(PROMPT, b=0)
    world.evict(PROMPT)
    world.ask(PROMPT, a=0, b=0)
    (worst,) = world.losses.describe()["largest"]
    assert (worst["cause"], worst["holder"]) == ("evicted", "b")


def test_a_batch_of_prompts_is_not_attributed() -> None:
    """vLLM reports the cached tokens of its last prompt only."""
    world = CacheLossWorld()
    other = text(2, 200)
    world.answer(world.send(PROMPT, other, a=0), other, 0)
    world.answer(world.send(PROMPT, other, a=384), other, 192)
    assert (world.causes(), world.losses.num_new_tokens) == ({}, 0)
    assert world.losses.unexplained == {"several_prompts": 400 + 208}
    world.evict(PROMPT)
    world.ask(PROMPT, a=0)
    assert world.causes() == {"evicted": 192}


def test_tokens_computed_for_log_probabilities_were_not_lost() -> None:
    world = CacheLossWorld()
    world.ask(PROMPT, a=0)
    world.answer(world.send(PROMPT, a=0, prompt_logprobs=1), PROMPT, 0)
    assert (world.causes(), world.losses.unexplained) == ({}, {"prompt_logprobs": 200})
    world.ask(PROMPT, cached=192, a=192)
    assert world.causes() == {}


@pytest.mark.parametrize(
    ("first", "then", "cause"),
    [
        ({}, {"salt": "s"}, "other_salt"),
        ({"salt": "s"}, {}, "other_salt"),
        ({"salt": "s"}, {"salt": "t"}, "other_salt"),
        ({}, {"model": "tuned"}, "other_adapter"),
        ({"model": "tuned"}, {}, "other_adapter"),
        ({"model": "tuned"}, {"salt": "s"}, "other_adapter"),
    ],
)
def test_equal_text_in_another_space_is_named(
    first: dict[str, Any], then: dict[str, Any], cause: str
) -> None:
    world = CacheLossWorld()
    world.ask(PROMPT, **first)
    world.ask(PROMPT, **then)
    assert world.causes() == {cause: 192}
    world.ask(PROMPT, 192, a=192, **then)
    assert world.causes() == {cause: 192}


HEAD, REST = text(3, 100), text(4, 400)


def test_a_prompt_with_a_broken_prefix_is_located() -> None:
    world = CacheLossWorld()
    world.ask([*HEAD, 1, *REST, *text(5, 30)])
    world.ask([*HEAD, 2, *REST, *text(6, 30)], 96, a=96)
    assert world.causes() == {"broken_prefix": 400}
    (worst,) = world.losses.describe()["largest"]
    assert worst["prefix_break"] == {
        "token": 100,
        "differing_tokens": 1,
        "kind": "unknown",
        "message": None,
        "role": None,
        "text": None,
    }


def test_a_broken_prefix_in_another_space_has_both_causes() -> None:
    world = CacheLossWorld()
    world.ask([*HEAD, 1, *REST])
    world.ask([*HEAD, 2, *REST], salt="s")
    assert world.causes() == {"other_salt": 96, "broken_prefix": 400 - 5}  # the last block is always computed


def test_prompts_with_the_same_break_are_one_offender_and_decoded_once() -> None:
    decoded: list[int] = []

    def decode(model: str, tokens: Any) -> str:
        decoded.append(len(tokens))
        return " ".join(map(str, tokens))

    world = CacheLossWorld(CacheLoss(decode, shows_text=True))
    messages = [{"role": "system", "content": " ".join(map(str, [*HEAD, 9, *REST]))}]
    for stamp in range(5):
        world.ask([*HEAD, stamp, *REST], 96 if stamp else 0, a=96 if stamp else 0, messages=messages)
    (worst,) = world.losses.describe()["largest"]
    assert worst["recomputed_requests"] == 4
    broken = worst["prefix_break"]
    assert (broken["message"], broken["role"], broken["token"]) == (0, "system", 100)
    assert len(decoded) == 3


def test_unreadable_messages_are_not_shown() -> None:
    world = CacheLossWorld(CacheLoss(lambda model, tokens: "text"))
    world.ask([*HEAD, 1, *REST])
    decision = world.send([*HEAD, 2, *REST])
    item = world.losses._queue[-1]
    assert isinstance(item, DecidedPrompt) and item.messages is not None
    item.messages = msgspec.structs.replace(item.messages, raws=[msgspec.Raw(b"{")], num_known=1)
    world.answer(decision, [*HEAD, 2, *REST], 0)
    assert world.losses.describe()["largest"][0]["prefix_break"]["message"] is None


def test_short_prompts_are_not_explained() -> None:
    world = CacheLossWorld()
    world.ask([*PROMPT, *text(7, 40)])
    world.ask([*PROMPT, 5, *text(7, 40)], 192, a=192)
    assert world.causes() == {}
