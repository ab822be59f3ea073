"""The tree of known tokens: bounded, leaves first, safe across threads."""

import random
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.blocks import HashSpace, hash_blocks, prompt_extra_keys, root_hash, tokens_of
from gateway.core.token_runs import (
    MAX_SPACES,
    RUN_BYTES,
    TOKEN_BYTES,
    TokenRun,
    TokenRunCache,
    hash_continued,
)


def run(name: bytes, parent: TokenRun | None = None, num_tokens: int = 2) -> TokenRun:
    return TokenRun(name, parent, tokens_of(range(num_tokens)), "proof", None, 0)


def test_tokens_of_a_chain_are_in_order() -> None:
    first = TokenRun(b"a", None, tokens_of([1, 2]), None, None, 0)
    last = TokenRun(
        b"c", TokenRun(b"b", first, tokens_of([3]), None, None, 0), tokens_of([4, 5]), None, None, 0
    )
    assert last.all_tokens().tolist() == [1, 2, 3, 4, 5]
    assert last.all_tokens() is not last.tokens


def test_used_runs_are_kept_with_their_parents() -> None:
    runs = TokenRunCache(4 * (RUN_BYTES + 2 * TOKEN_BYTES))
    root = run(b"root")
    first, second = run(b"one", root), run(b"other", root)
    for each in (first, second, run(b"x"), first, run(b"y"), run(b"z")):
        runs.use(each)
    assert [name in runs for name in (b"root", b"one", b"other", b"x", b"y", b"z")] == [
        True, True, False, False, True, True,
    ]  # fmt: skip
    assert runs.get(b"one") is first and runs.get(b"other") is None
    assert len(runs) == 4 and runs.num_bytes == 4 * (RUN_BYTES + 2 * TOKEN_BYTES)
    assert repr(runs) == f"TokenRunCache(4 runs, {runs.num_bytes} of {runs.num_bytes} bytes)"


def test_a_run_of_the_same_name_replaces_the_earlier_one() -> None:
    runs = TokenRunCache()
    runs.use(run(b"a", num_tokens=100))
    runs.use(newer := run(b"a", num_tokens=1))
    assert runs.get(b"a") is newer
    assert runs.num_bytes == newer.num_bytes


def test_a_run_larger_than_the_limit_is_not_kept() -> None:
    runs = TokenRunCache(1000)
    runs.use(run(b"a", num_tokens=1000))
    assert (len(runs), runs.num_bytes) == (0, 0)


def test_bytes_are_counted_under_threads() -> None:
    runs = TokenRunCache(50_000)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(2_000):
            root = runs.get(b"%d" % rng.randrange(30)) or run(b"%d" % rng.randrange(30))
            runs.use(run(b"%d" % rng.randrange(1000), root, rng.randrange(100)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert runs.num_bytes == sum(each.num_bytes for each in runs._runs.values()) <= 50_000


@given(
    st.lists(st.integers(0, 40), max_size=5),
    st.integers(0, 70),
    st.sampled_from([1, 8, 16]),
    st.sampled_from([(None, None), ("lora", None), (None, "salt"), ("lora", "salt")]),
)
def test_hashes_remembered_by_runs_equal_those_of_the_whole(
    parts: list[int], num_new: int, size: int, extra: tuple[str | None, str | None]
) -> None:
    tokens = tokens_of(range(sum(parts) + num_new))
    node, at = None, 0
    for i, num in enumerate(parts):
        node = TokenRun(b"%d" % i, node, tokens[at : at + num], None, None, 0)
        at += num
    space = HashSpace(root_hash("m"), size, *extra)
    expected = hash_blocks(tokens, size, space.root, prompt_extra_keys(*extra, len(tokens) // size))
    for known in (node, node and node.parent, node):  # a parent first, then its child, and again
        assert hash_continued(tokens, known, space) == expected


def test_a_run_remembers_the_hashes_of_a_few_spaces() -> None:
    known = run(b"a", num_tokens=64)
    for i in range(MAX_SPACES + 1):
        hash_continued(known.tokens, known, HashSpace(root_hash("m"), 16, None, f"tenant {i}"))
    assert len(known.hashes) == 1
