"""Candidates behind the router's decisions; test_router.py has the decisions."""

from gateway.core.ledger import Ledger
from gateway.index.assumed import AssumedIndex
from gateway.index.memory import MemoryIndex
from gateway.index.sent_media import SentLinks
from gateway.routing.candidates import Lookups, max_hit_blocks


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    assert [max_hit_blocks(num, 16) for num in (0, 1, 16, 17, 32, 33)] == [0, 0, 0, 1, 1, 2]


def test_the_repr_of_lookups_names_the_index() -> None:
    assumed = AssumedIndex()
    lookups = Lookups(MemoryIndex(), assumed, Ledger(), SentLinks(assumed, 60.0))
    assert repr(lookups).startswith("Lookups(MemoryIndex")
