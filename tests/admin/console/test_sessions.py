"""Sessions: bound to a key's id, ended by rest and by age, bounded in number."""

from itertools import count

import pytest

from gateway.admin.console.sessions import IDLE_S, MAX_S, MAX_SESSIONS, MAX_TOKEN_CHARS, Sessions


@pytest.fixture
def sessions() -> Sessions:
    numbers = count()
    return Sessions(lambda: f"token-{next(numbers)}")


def test_a_token_names_the_key_that_opened_it(sessions: Sessions) -> None:
    first, second = sessions.open("a", 0.0), sessions.open("b", 0.0)
    assert (sessions.key_of(first, 1.0), sessions.key_of(second, 1.0)) == ("a", "b")


@pytest.mark.parametrize("token", ["", "token-1", "t" * (MAX_TOKEN_CHARS + 1), "\udcff", "é"])
def test_other_tokens_name_none(sessions: Sessions, token: str) -> None:
    sessions.open("a", 0.0)
    assert sessions.key_of(token, 0.0) is None


def test_a_session_ends_after_rest(sessions: Sessions) -> None:
    token = sessions.open("a", 0.0)
    assert sessions.key_of(token, IDLE_S) == "a"
    assert sessions.key_of(token, 2 * IDLE_S) == "a"
    assert sessions.key_of(token, 3 * IDLE_S + 1) is None
    assert len(sessions) == 0


def test_a_session_that_is_used_ends_by_age(sessions: Sessions) -> None:
    token, now = sessions.open("a", 0.0), 0.0
    while now + IDLE_S <= MAX_S:
        now += IDLE_S
        assert sessions.key_of(token, now) == "a"
    assert sessions.key_of(token, MAX_S + 1) is None


def test_a_closed_session_is_none(sessions: Sessions) -> None:
    token = sessions.open("a", 0.0)
    sessions.close(token)
    sessions.close("other")
    assert sessions.key_of(token, 0.0) is None


def test_the_one_that_rested_longest_makes_room(sessions: Sessions) -> None:
    tokens = [sessions.open("a", float(i)) for i in range(MAX_SESSIONS)]
    sessions.key_of(tokens[0], 300.0)
    sessions.open("b", 301.0)
    assert len(sessions) == MAX_SESSIONS
    assert (sessions.key_of(tokens[0], 302.0), sessions.key_of(tokens[1], 302.0)) == ("a", None)


def test_no_token_is_kept(sessions: Sessions) -> None:
    token = sessions.open("a", 0.0)
    assert token.encode() not in b"".join(sessions._open)
