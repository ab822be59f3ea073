"""Cost of salts: prefixes known under another salt, and not cached under the own one."""

import random

from gateway.core.blocks import Tokens, tokens_of
from gateway.tenancy.auth.salt_cost import CHUNK_TOKENS, MAX_CHUNKS, SaltCost


def prompt(seed: int, num_chunks: float, *before: Tokens) -> Tokens:
    rng = random.Random(seed)
    tokens = tokens_of([])
    for each in before:
        tokens.extend(each)
    tokens.extend(tokens_of([rng.randrange(50_000) for _ in range(int(num_chunks * CHUNK_TOKENS))]))
    return tokens


def cost(salt_cost: SaltCost, tokens: Tokens, salt: str, num_cached: int = 0, model: str = "m") -> int:
    before = salt_cost.num_tokens
    salt_cost.see(model, [tokens], salt, num_cached)
    return salt_cost.num_tokens - before


def test_prefixes_known_from_another_tenant_cost_and_no_others() -> None:
    g, shared = SaltCost(), prompt(1, 4)
    assert cost(g, shared, "a") == 0  # new
    assert cost(g, shared, "a") == 0  # the tenant's own, at any worker
    assert cost(g, shared, "b") == 4 * CHUNK_TOKENS - 1  # the last token is always computed
    assert cost(g, shared, "c", model="n") == 0
    assert cost(g, prompt(2, 4), "b") == 0


def test_cached_tokens_are_no_cost() -> None:
    g, shared = SaltCost(), prompt(1, 4.5)
    cost(g, shared, "a")
    assert cost(g, shared, "b") == 4 * CHUNK_TOKENS
    assert cost(g, shared, "b", num_cached=1000) == 24
    assert cost(g, shared, "a", num_cached=5000) == 0


def test_only_a_shared_prefix_counts() -> None:
    g, beginning = SaltCost(), prompt(1, 2)
    cost(g, prompt(2, 3, beginning), "a")
    assert cost(g, prompt(3, 3, beginning), "b") == 2 * CHUNK_TOKENS
    other = prompt(4, 1)
    other.extend(beginning)
    assert cost(g, other, "c") == 0


def test_memory_is_bounded_by_the_caches_of_the_fleet() -> None:
    g = SaltCost()
    g.set_capacity(10 * CHUNK_TOKENS)
    first = prompt(0, 4)
    cost(g, first, "a")
    for seed in range(1, 4):
        cost(g, prompt(seed, 4), "a")
    assert len(g._chunks) == 10
    assert cost(g, first, "b") == 0  # forgotten, as a cache of that size would have
    assert cost(g, prompt(3, 4), "b") > 0
    assert cost(g, prompt(9, 40), "a") == 0 and len(g._chunks) == 10
    for num_tokens, capacity in ((0, MAX_CHUNKS), (1, 1), (1 << 40, MAX_CHUNKS)):
        g.set_capacity(num_tokens)
        assert g.capacity == capacity


def test_batched_and_short_prompts_count() -> None:
    g = SaltCost()
    g.see("m", [prompt(1, 2), prompt(2, 2)], "a", 0)
    g.see("m", [prompt(1, 2), prompt(2, 2), tokens_of([]), tokens_of([5])], "b", 100)
    assert g.num_tokens == 2 * (2 * CHUNK_TOKENS - 1) - 100
    assert g.num_seen == 8 * CHUNK_TOKENS + 1
    assert repr(g) == "SaltCost(922 of 2049 tokens, 4 chunks)"
