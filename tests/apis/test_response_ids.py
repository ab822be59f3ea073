"""Response ids that lead back to the worker that made them, and to no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apis.response_ids import (
    MAX_ID_BYTES,
    MAX_OWN_CHARS,
    MAX_PLACES,
    Renaming,
    RenamingScanner,
    ResponseIds,
    parse_stored,
    stored_path,
)
from gateway.core.errors import MethodNotAllowed, UnknownResponse, UnknownRoute
from gateway.core.worker import WorkerId

A, B = WorkerId("10.0.0.1:8000"), WorkerId("10.0.0.1:8000#1")
IDS = ResponseIds()


@given(st.one_of(st.text(max_size=100), st.from_regex(r"resp_[0-9a-f]{32}", fullmatch=True)))
def test_an_id_is_read_back_by_any_gateway(own: str) -> None:
    given_id = IDS.given(own, B)
    if own in ("", "resp_"):
        return
    assert ResponseIds().find(given_id, [A, B]) == (own, B)
    method, path = "GET", stored_path(given_id, "").decode()
    assert parse_stored(method, path) == (given_id, "")


def test_an_id_is_short_and_reveals_no_address() -> None:
    given_id = IDS.given("resp_" + "a" * 32, A)
    assert len(given_id) == 37 + 15
    assert given_id.startswith("resp_kv_")
    assert "10.0.0.1" not in given_id


def test_ids_with_different_keys_do_not_read_each_other() -> None:
    keyed = ResponseIds(b"secret")
    own = IDS.given("resp_1", A)
    assert keyed.given("resp_1", A) != own
    with pytest.raises(UnknownResponse, match="is not available"):
        keyed.find(own, [A, B])
    assert ResponseIds(b"secret").find(keyed.given("resp_1", A), [A]) == ("resp_1", A)


def test_an_id_is_unknown_to_another_tenant() -> None:
    keyed = ResponseIds(b"secret")
    given_id = keyed.given("resp_1", A, "acme")
    assert keyed.find(given_id, [A, B], "acme") == ("resp_1", A)
    for tenant in ("other", ""):
        with pytest.raises(UnknownResponse, match="another tenant owns it"):
            keyed.find(given_id, [A, B], tenant)


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        ("resp_1", "is unknown"),
        ("", "is unknown"),
        ("resp_kv_short_1", "is unknown"),
        ("resp_kv_" + "A" * 11 + "_", "is unknown"),
        ("resp_kv_10.0.0.9:80_1", "is unknown"),
        ("resp_kv_" + "A" * 11 + "_1", "is not available"),
        (IDS.given("resp_" + "a" * MAX_ID_BYTES, A), "is unknown"),
        (IDS.given("resp_1", WorkerId("10.0.0.9:80")), "is not available"),
    ],
)
def test_a_forged_id_is_not_found(forged: str, why: str) -> None:
    with pytest.raises(UnknownResponse, match=why) as caught:
        IDS.find(forged, [A, B])
    assert (caught.value.status, caught.value.code) == (404, "response_not_found")


def test_cached_names_of_workers_are_bounded() -> None:
    ids = ResponseIds()
    names = {ids.name(WorkerId(f"w:{i}")) for i in range(10_050)}
    assert len(names) == 10_050
    assert len(ids._names) <= 10_001
    assert ids.name(WorkerId("w:1")) in names


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/responses/a", ("a", "")),
        ("DELETE", "/v1/responses/a%2Fb", ("a/b", "")),
        ("POST", "/v1/responses/a/cancel", ("a", "/cancel")),
        ("GET", "/v1/responses/a/input_items", ("a", "/input_items")),
    ],
)
def test_a_path_of_a_stored_response_is_parsed(method: str, path: str, expected: tuple[str, str]) -> None:
    assert parse_stored(method, path) == expected


@pytest.mark.parametrize(
    ("method", "path", "error"),
    [
        ("GET", "/v1/responses/", UnknownRoute),
        ("GET", "/v1/responses//cancel", UnknownRoute),
        ("POST", "/v1/responses/a/else", UnknownRoute),
        ("POST", "/v1/responses/a/cancel/", UnknownRoute),
        ("POST", "/v1/responses/a", MethodNotAllowed),
        ("GET", "/v1/responses/a/cancel", MethodNotAllowed),
    ],
)
def test_other_paths_are_no_stored_responses(method: str, path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_stored(method, path)


def test_an_id_of_the_worker_cannot_change_the_path() -> None:
    assert stored_path("../../sleep?x", "/cancel") == b"/v1/responses/..%2F..%2Fsleep%3Fx/cancel"


def renaming() -> Renaming:
    return Renaming(lambda own: IDS.given(own, A))


GIVEN = IDS.given("resp_1", A).encode()


@pytest.mark.parametrize("sep", [b":", b": "])
def test_the_id_of_a_plain_answer_is_renamed(sep: bytes) -> None:
    names = renaming()
    body = b'{"id"%b"resp_1","object"%b"response","text"%b"\\"resp_1\\" resp_1"}' % (sep, sep, sep)
    names.read(body)
    assert names.renamed(body) == body.replace(b'"resp_1"', b'"%b"' % GIVEN, 1)


def test_an_id_of_any_characters_is_renamed() -> None:
    names = Renaming(lambda own: own + r"\1")
    names.read(rb'{"id":"a\\g<1>\"b","object":"response"}')
    assert names.renamed(rb'{"id":"a\\g<1>\"b"}') == rb'{"id":"a\\g<1>\"b\\1"}'


def test_a_giant_id_and_those_behind_many_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker sets their length and their number."""
    names, giant = renaming(), b'{"id":"%b","object":"response"}' % (b"r" * (MAX_OWN_CHARS + 1))
    names.read(giant)
    assert names.renamed(giant) == giant
    names.read(b'{"id":"resp_1","object":"response"}')
    many = b'"id":"resp_1",' * (MAX_PLACES + 1)
    assert names.renamed(many).count(GIVEN) == MAX_PLACES


@pytest.mark.parametrize("beginning", [b'{"id":"resp_1","x":', b' {\n "id" : "resp_1" ,"x":'])
def test_the_id_is_read_in_the_beginning_of_a_long_answer(beginning: bytes) -> None:
    names = renaming()
    names.read_beginning(beginning)
    assert names.renamed(beginning) == beginning.replace(b"resp_1", GIVEN)
    names = renaming()
    names.read_beginning(b'{"x":1,' + beginning)
    assert names.renamed(beginning) == beginning


@pytest.mark.parametrize(
    "body", [b"", b"no JSON", b"[]", b'{"id":"resp_1"}', b'{"id":7,"object":"response"}']
)
def test_an_answer_that_is_no_response_is_unchanged(body: bytes) -> None:
    names = renaming()
    names.read(body)
    assert names.renamed(body) == body


STREAM = (
    b'event: response.created\ndata: {"response":{"id":"resp_1","output":[]},"type":"response.created"}\n\n'
    b'event: x\ndata: {"delta":"\\"response\\" resp_1","type":"response.output_text.delta"}\n\n'
    b'event: y\ndata: {"response":{"id":"resp_1","previous_response_id":"resp_0"},"type":"y"}\n\n'
)


@pytest.mark.parametrize("size", [1, 7, 60, 4096])
def test_a_stream_is_renamed_however_it_is_split(size: int) -> None:
    names = renaming()
    names.add("resp_0")
    scanner = RenamingScanner(names)
    out = b"".join(scanner.feed(STREAM[i : i + size]) for i in range(0, len(STREAM), size)) + scanner.flush()
    before = IDS.given("resp_0", A).encode()
    assert out == STREAM.replace(b'"id":"resp_1"', b'"id":"%b"' % GIVEN).replace(
        b'"resp_0"', b'"%b"' % before
    )


def test_an_error_names_the_id_that_its_client_sent() -> None:
    names = renaming()
    names.add("resp_1")
    assert names.renamed_words(b"Response with id 'resp_1' not found.") == (
        b"Response with id '%b' not found." % GIVEN
    )
