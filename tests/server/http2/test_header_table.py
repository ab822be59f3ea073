"""Tables of headers, beside the library's."""

from hpack.table import HeaderTable as Library
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.http2.header_table import MAX_TABLE_BYTES, HeaderTable, size_of

HEADERS = st.tuples(
    st.sampled_from([b"a", b"name", b"n" * 300]), st.sampled_from([b"", b"value", b"v" * 900, b"v" * 5000])
)


def test_the_static_headers_are_those_of_the_rfc() -> None:
    table = HeaderTable()
    assert [table.get(index) for index in range(1, 62)] == list(Library.STATIC_TABLE)
    assert table.get(0) is None and table.get(62) is None and table.get(1 << 30) is None


@given(st.lists(st.one_of(HEADERS, st.integers(0, MAX_TABLE_BYTES)), max_size=40))
def test_headers_enter_and_leave_as_in_hpack(steps: list[tuple[bytes, bytes] | int]) -> None:
    table, library = HeaderTable(), Library()
    for step in steps:
        if isinstance(step, int):
            table.resize(step)
            library.maxsize = step
        else:
            table.add(step)
            library.add(*step)
        newest = list(library.dynamic_entries)
        assert [table.get(62 + at) for at in range(len(newest))] == newest
        assert table.get(62 + len(newest)) is None


def test_its_state_is_visible() -> None:
    table = HeaderTable()
    table.add((b"a", b"bc"))
    assert size_of((b"a", b"bc")) == 35
    assert repr(table) == "HeaderTable(1 added, 35 of 4096 bytes)"
