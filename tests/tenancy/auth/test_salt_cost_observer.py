"""Observer of the cost of salts: it counts queued prompts later and delays no request."""

from typing import Any

import pytest

from gateway.core.blocks import tokens_of
from gateway.core.decision import Decided, Prompt
from gateway.core.fleet import Fleet
from gateway.core.request import InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.tenancy.auth import salt_cost_observer as module
from gateway.tenancy.auth.salt_cost import CHUNK_TOKENS, MAX_CHUNKS
from gateway.tenancy.auth.salt_cost_observer import SaltCostObserver
from tests.support.fakes import decision, worker

PROMPT = Prompt([tokens_of(range(4 * CHUNK_TOKENS))])


def see(salt_observer: SaltCostObserver, salt: str | None, prompt: Prompt = PROMPT, **more: Any) -> None:
    request = InferenceRequest(
        RouteKind.COMPLETION, "/v1/completions", b"", {"model": "m", "cache_salt": salt}
    )
    salt_observer.decided(Decided(decision("d", **more), prompt, [], request))


def test_queued_prompts_are_counted_later() -> None:
    salt_observer = SaltCostObserver(Fleet())
    for salt in ("a", "b"):
        see(salt_observer, salt)
    assert salt_observer.salt_cost.num_seen == 0
    assert [salt_observer.step() for _ in range(3)] == [True, True, False]
    assert salt_observer.salt_cost.num_tokens > 0 and salt_observer.salt_cost.num_seen == 8 * CHUNK_TOKENS


def test_a_prompt_without_a_salt_or_tokens_costs_nothing() -> None:
    salt_observer = SaltCostObserver(Fleet())
    see(salt_observer, None)
    see(salt_observer, "a", Prompt())
    assert not salt_observer.step()


def test_prompts_beyond_the_queue_are_skipped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED", 2)
    salt_observer = SaltCostObserver(Fleet())
    for _ in range(5):
        see(salt_observer, "a")
    assert salt_observer.num_left_out == 3
    while salt_observer.step():
        pass
    see(salt_observer, "a")
    assert salt_observer.num_left_out == 3 and salt_observer.step()


def test_memory_follows_the_caches_of_the_fleet() -> None:
    fleet = Fleet()
    salt_observer = SaltCostObserver(fleet)
    salt_observer.measure_fleet()
    assert salt_observer.salt_cost.capacity == MAX_CHUNKS
    fleet.add(worker("w:1"))
    salt_observer.measure_fleet()
    known = next(iter(fleet)).worker
    tokens = (known.num_blocks or 0) * (known.block_size or 0)
    assert salt_observer.salt_cost.capacity == (tokens // CHUNK_TOKENS or 1 if tokens else MAX_CHUNKS)
