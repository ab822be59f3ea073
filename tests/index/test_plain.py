from gateway.index.memory import MemoryIndex, is_prefix_group

from gateway.index.base import Index
from tests.index.contract import IndexContract


class TestMemoryIndex(IndexContract):
    def make(self) -> Index:
        return MemoryIndex()


def test_which_groups_prefixes_are_made_of() -> None:
    assert is_prefix_group(0, None)
    assert is_prefix_group(0, "full_attention")
    assert is_prefix_group(2, "full_attention")
    assert not is_prefix_group(1, None)
    assert not is_prefix_group(0, "sliding_window")
