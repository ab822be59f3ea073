import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.cache_loss.attribution import LossCause, TokenSegment, TokenSpan, lay_out, settle

AWAY, GONE, BROKEN = LossCause.ROUTED_AWAY, LossCause.EVICTED, LossCause.BROKEN_PREFIX

spans = st.builds(TokenSpan, st.integers(0, 120), st.integers(0, 120))
layers = st.lists(st.tuples(spans, st.sampled_from(LossCause)), max_size=6)


@pytest.mark.parametrize(
    ("layers", "parts"),
    [
        ([], [TokenSegment(100, None)]),
        ([(TokenSpan(0, 40), AWAY)], [TokenSegment(40, AWAY), TokenSegment(100, None)]),
        (
            [(TokenSpan(0, 40), AWAY), (TokenSpan(0, 64), GONE)],
            [TokenSegment(40, AWAY), TokenSegment(64, GONE), TokenSegment(100, None)],
        ),
        (
            [(TokenSpan(0, 64), GONE), (TokenSpan(0, 40), AWAY)],
            [TokenSegment(64, GONE), TokenSegment(100, None)],
        ),
        ([(TokenSpan(50, 200), BROKEN)], [TokenSegment(50, None), TokenSegment(100, BROKEN)]),
        ([(TokenSpan(40, 20), AWAY)], [TokenSegment(100, None)]),
        (
            [(TokenSpan(0, 20), GONE), (TokenSpan(20, 40), GONE)],
            [TokenSegment(40, GONE), TokenSegment(100, None)],
        ),
    ],
)
def test_the_first_layer_has_a_token(
    layers: list[tuple[TokenSpan, LossCause]], parts: list[TokenSegment]
) -> None:
    assert lay_out(100, layers) == parts


@pytest.mark.parametrize(
    ("cached", "num_prompt", "evicted_end", "lost", "num_new"),
    [
        (0, 100, 0, {AWAY: 40, GONE: 24}, 36),
        (40, 100, 0, {GONE: 24}, 36),
        (50, 100, 0, {GONE: 14}, 36),
        (64, 100, 0, {}, 36),
        (0, 100, 48, {GONE: 64}, 36),  # it held 48 of them when the request was sent
        (16, 100, 32, {GONE: 40, AWAY: 8}, 36),
        (0, 130, 0, {AWAY: 40, GONE: 24}, 66),  # more than are known
        (0, 30, 0, {AWAY: 30}, 0),
        (30, 20, 0, {}, 0),
        (-5, 100, 0, {AWAY: 40, GONE: 24}, 36),
    ],
)
def test_uncached_tokens_are_counted(
    cached: int, num_prompt: int, evicted_end: int, lost: dict[LossCause, int], num_new: int
) -> None:
    parts = [TokenSegment(40, AWAY), TokenSegment(64, GONE), TokenSegment(100, None)]
    account = settle(parts, cached, num_prompt, evicted_end)
    assert (account.lost, account.num_new) == (lost, num_new)


@given(layers, st.integers(0, 100), st.integers(-10, 150), st.integers(-10, 150), st.integers(0, 150))
def test_causes_and_new_text_add_up_to_the_computed_tokens(
    layers: list[tuple[TokenSpan, LossCause]], num_tokens: int, cached: int, num_prompt: int, evicted_end: int
) -> None:
    parts = lay_out(num_tokens, layers)
    assert [part.end for part in parts] == sorted({part.end for part in parts})
    assert not parts or parts[-1].end == num_tokens
    account = settle(parts, cached, num_prompt, evicted_end)
    computed = max(num_prompt, 0) - min(max(cached, 0), max(num_prompt, 0))
    assert sum(account.lost.values()) + account.num_new == computed
    assert account.num_new >= 0 and all(num > 0 for num in account.lost.values())
