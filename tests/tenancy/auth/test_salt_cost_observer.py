"""What a salt has cost is counted beside the requests, never for them."""

from typing import Any

import pytest

from gateway.core.blocks import tokens_of
from gateway.core.decision import Prompt
from gateway.core.fleet import Fleet
from gateway.core.requests.request import InferenceRequest
from gateway.core.requests.routes import Kind
from gateway.tenancy.auth import salt_cost_observer as module
from gateway.tenancy.auth.salt_cost import CHUNK_TOKENS, MAX_CHUNKS
from gateway.tenancy.auth.salt_cost_observer import SaltWitness
from tests.support.fakes import decision, worker

PROMPT = Prompt([tokens_of(range(4 * CHUNK_TOKENS))])


def see(witness: SaltWitness, salt: str | None, prompt: Prompt = PROMPT, **more: Any) -> None:
    request = InferenceRequest(Kind.COMPLETION, "/v1/completions", b"", {"model": "m", "cache_salt": salt})
    witness.decided(decision("d", **more), prompt, [], request)


def test_what_is_queued_is_counted_aside() -> None:
    witness = SaltWitness(Fleet())
    for salt in ("a", "b"):
        see(witness, salt)
    assert witness.given_up.num_seen == 0
    assert [witness.step() for _ in range(3)] == [True, True, False]
    assert witness.given_up.num_tokens > 0 and witness.given_up.num_seen == 8 * CHUNK_TOKENS


def test_what_has_no_salt_or_no_tokens_costs_nothing() -> None:
    witness = SaltWitness(Fleet())
    see(witness, None)
    see(witness, "a", Prompt())
    assert not witness.step()


def test_what_comes_too_fast_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED", 2)
    witness = SaltWitness(Fleet())
    for _ in range(5):
        see(witness, "a")
    assert witness.num_left_out == 3
    while witness.step():
        pass
    see(witness, "a")
    assert witness.num_left_out == 3 and witness.step()


def test_it_remembers_as_much_as_the_fleet_caches() -> None:
    fleet = Fleet()
    witness = SaltWitness(fleet)
    witness.measure_fleet()
    assert witness.given_up.capacity == MAX_CHUNKS
    fleet.add(worker("w:1"))
    witness.measure_fleet()
    known = next(iter(fleet)).worker
    tokens = (known.num_blocks or 0) * (known.block_size or 0)
    assert witness.given_up.capacity == (tokens // CHUNK_TOKENS or 1 if tokens else MAX_CHUNKS)
