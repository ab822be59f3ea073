"""Huffman code of HPACK (RFC 7541, 5.2 and appendix B), decoded four bits at a time.

lengths of the codes ─► canonical codes ─► tree ─► for each inner node and four bits: next node, symbol
"""

from typing import Final

_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c"
    "060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "1416141416161617161717171717181718181617181717171715161716171718"
    "1615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)
"""Bits of each symbol's code; the last one is EOS. Codes of one length count up in the order of symbols."""

EOS: Final = 256
_FAIL: Final = -1


class HuffmanError(Exception):
    """A string with EOS, or with other padding than fewer than eight ones."""


def _tree() -> list[list[int]]:
    """Return inner nodes, the root first: for each bit the next node, or a symbol as ~symbol."""
    nodes = [[0, 0]]
    code, length = 0, 0
    for symbol in sorted(range(EOS + 1), key=lambda symbol: (_LENGTHS[symbol], symbol)):
        code <<= _LENGTHS[symbol] - length
        length = _LENGTHS[symbol]
        at = 0
        for place in range(length - 1, 0, -1):
            bit = code >> place & 1
            if nodes[at][bit] == 0:
                nodes[at][bit] = len(nodes)
                nodes.append([0, 0])
            at = nodes[at][bit]
        nodes[at][code & 1] = ~symbol
        code += 1
    return nodes


def _step(nodes: list[list[int]], node: int, nibble: int) -> int:
    """Return what four bits lead to: the next node, and above its bits the symbol on the way, plus 1."""
    symbol = 0
    for place in (3, 2, 1, 0):
        node = nodes[node][nibble >> place & 1]
        if node == ~EOS:
            return _FAIL
        if node < 0:
            node, symbol = 0, ~node + 1
    return symbol << 8 | node


def _paddings(nodes: list[list[int]]) -> frozenset[int]:
    """Return the nodes at which a string may end: up to seven ones behind a symbol."""
    ends = [0]
    while len(ends) < 8:
        ends.append(nodes[ends[-1]][1])
    return frozenset(ends)


_NODES: Final = _tree()
_STEPS: Final = [_step(_NODES, node, nibble) for node in range(len(_NODES)) for nibble in range(16)]
_PADDINGS: Final = _paddings(_NODES)


def huffman_decoded(data: bytes) -> bytes:
    """Return a string without its Huffman code. Raises HuffmanError."""
    symbols: list[int] = []
    node = 0
    for at in range(2 * len(data)):
        octet = data[at >> 1]
        step = _STEPS[node << 4 | (octet & 15 if at & 1 else octet >> 4)]
        if step == _FAIL:
            raise HuffmanError("a string with the symbol EOS")
        node = step & 255
        if step > 255:
            symbols.append((step >> 8) - 1)
    if node not in _PADDINGS:
        raise HuffmanError("a string with broken padding")
    return bytes(symbols)
