"""Sessions of the console: random tokens, kept as hashes in memory, each bound to the id of a key.

    open ─► used within IDLE_S each time ─► closed, idle, or older than MAX_S

A restart forgets them all. The key itself is never kept.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2s

IDLE_S = 3600.0
MAX_S = 12 * 3600.0
MAX_SESSIONS = 256
"""Beyond that the one that was idle for longest is closed."""
MAX_TOKEN_CHARS = 128


@dataclass(slots=True)
class _Session:
    key_id: str
    opened_s: float
    used_s: float


class Sessions:
    """Open sessions; `new_token` returns a text that cannot be guessed."""

    def __init__(self, new_token: Callable[[], str]) -> None:
        self._new_token = new_token
        self._open: OrderedDict[bytes, _Session] = OrderedDict()

    def __repr__(self) -> str:
        return f"Sessions({len(self._open)} open)"

    def __len__(self) -> int:
        return len(self._open)

    def open(self, key_id: str, now: float) -> str:
        """Open a session for a key that was checked; returns its token."""
        token = self._new_token()
        self._open[_hash(token)] = _Session(key_id, now, now)
        while len(self._open) > MAX_SESSIONS:
            self._open.popitem(last=False)
        return token

    def key_of(self, token: str, now: float) -> str | None:
        """Id of the key that opened a session, which is used now; None for no open session."""
        if len(token) > MAX_TOKEN_CHARS or (session := self._open.get(hashed := _hash(token))) is None:
            return None
        if now - session.used_s > IDLE_S or now - session.opened_s > MAX_S:
            del self._open[hashed]
            return None
        session.used_s = now
        self._open.move_to_end(hashed)
        return session.key_id

    def close(self, token: str) -> None:
        self._open.pop(_hash(token), None)


def _hash(token: str) -> bytes:
    return blake2s(token.encode("utf-8", "surrogateescape"), digest_size=16).digest()
