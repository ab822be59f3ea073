"""Ids of responses as clients see them: the worker that made one is written into it, by a name of eleven
characters, so that any gateway before the same workers finds it again, also after a restart.

    its worker's            resp_0af3…               anything else
    its client's    resp_kv_NNNNNNNNNNN_0af3…     resp_kw_NNNNNNNNNNN_anything else

The name is a hash of the worker's id and of the tenant who has shown a key, keyed where a key is given. It is
looked for among the workers that are known: no id leads anywhere else, nor is it worth anything to another
tenant. What comes from a worker is changed where it names a response, or the one
before it, by its id, which nothing inside a text can do: its quotes would be escaped.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from hashlib import blake2b
from urllib.parse import quote, unquote

import msgspec

from gateway.core.decode_errors import UNREADABLE
from gateway.core.errors import MethodNotAllowed, UnknownResponse, UnknownRoute
from gateway.core.route_table import RESPONSES
from gateway.core.worker import WorkerId
from gateway.http.sse import SseScanner, event_data

STORED = RESPONSES + "/ID"
"""The path by which requests about a response are counted and let in."""
MAX_ID_BYTES = 512
MAX_OWN_CHARS = 256
"""Characters of a worker's id; engines' have 37. A longer one stays as it is, and cannot be continued."""
MAX_PLACES = 256
"""Places that are looked at for an id in what passes at once; an answer has two or three."""

_GIVEN = re.compile(r"resp_k([vw])_([A-Za-z0-9_-]{11})_(.+)", re.DOTALL)
_KEY_BEFORE = re.compile(rb'"(?:id|previous_response_id)"\s{0,16}:\s{0,16}\Z')
_KEY_BYTES = 64
_FIRST_ID = re.compile(rb'\s{0,16}\{\s{0,16}"id"\s{0,16}:\s{0,16}"([!#-\[\]-~]{1,256})"')
_METHODS = {"": ("GET", "DELETE"), "/cancel": ("POST",), "/input_items": ("GET",)}


class ResponseIds:
    """Ids of stored responses, which name their worker and tenant. `key`, of up to 64 bytes, must be the same
    for all gateways before the same workers."""

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self._names: dict[tuple[WorkerId, str], str] = {}

    def name(self, worker: WorkerId, tenant: str = "") -> str:
        """The hash of a worker and a tenant; `tenant` is "" without authentication."""
        known = self._names.get((worker, tenant))
        if known is None:
            if len(self._names) > 10_000:
                self._names.clear()  # workers come and go
            named = f"{worker}\0{tenant}" if tenant else worker
            digest = blake2b(
                named.encode("utf-8", "surrogatepass"),
                digest_size=8,
                key=self._key,
                person=b"kvgate response",
            ).digest()
            known = self._names[worker, tenant] = urlsafe_b64encode(digest).decode().rstrip("=")
        return known

    def given(self, own: str, worker: WorkerId, tenant: str = "") -> str:
        """The client's id of a worker's response id."""
        rest = own.removeprefix("resp_")
        return f"resp_k{'w' if rest is own else 'v'}_{self.name(worker, tenant)}_{rest}"

    def find(self, given: str, workers: Iterable[WorkerId], tenant: str = "") -> tuple[str, WorkerId]:
        """The worker's own id, and the worker. Raises UnknownResponse that says why."""
        parts = _GIVEN.fullmatch(given) if len(given) <= MAX_ID_BYTES else None
        if parts is None:
            raise UnknownResponse(
                f"the response '{given[:80]}' is unknown; use an id that this gateway returned"
            )
        for worker in workers:
            if self.name(worker, tenant) == parts[2]:
                return parts[3] if parts[1] == "w" else f"resp_{parts[3]}", worker
        raise UnknownResponse(
            f"the response '{given[:80]}' is not available: its worker left, or another tenant owns it; send "
            "the whole conversation"
        )


def parse_stored(method: str, path: str) -> tuple[str, str]:
    """The id that a path under RESPONSES names, and what is behind it. Raises UnknownRoute or
    MethodNotAllowed."""
    given, slash, rest = path[len(RESPONSES) + 1 :].partition("/")
    methods = _METHODS.get(slash + rest)
    if methods is None or not given:
        raise UnknownRoute(f"there is no route {path}")
    if method not in methods:
        allowed = ", ".join(methods)
        raise MethodNotAllowed(f"{STORED}{slash}{rest} accepts {allowed}, not {method}", param=allowed)
    return unquote(given), slash + rest


def stored_path(own: str, behind: str) -> bytes:
    return f"{RESPONSES}/{quote(own, safe='')}{behind}".encode()


class _Named(msgspec.Struct):
    id: str | None = None
    object: str | None = None
    response: "_Named | None" = None


_decode = msgspec.json.Decoder(_Named).decode


class Renaming:
    """A worker's ids of one request that are known, and what they are called before its client."""

    def __init__(self, given: Callable[[str], str]) -> None:
        self._given = given
        self._pairs: dict[bytes, bytes] = {}
        self.has_read = False

    def add(self, own: str) -> None:
        if len(own) > MAX_OWN_CHARS:
            return
        self._pairs[msgspec.json.encode(own)] = msgspec.json.encode(self._given(own))

    def read(self, text: bytes) -> None:
        """The id of the response in an answer, or in an event of one."""
        try:
            named = _decode(text)
        except UNREADABLE:
            return
        response = named.response or (named if named.object == "response" else None)
        if response is not None and response.id:
            self.has_read = True
            self.add(response.id)

    def read_beginning(self, text: bytes) -> None:
        """The id of the response in the beginning of a long answer: its first field, as engines write it."""
        if (found := _FIRST_ID.match(text)) is not None:
            self.has_read = True
            self.add(found[1].decode())

    def renamed(self, data: bytes) -> bytes:
        for own, given in self._pairs.items():
            data = _replaced(data, own, given)
        return data

    def renamed_words(self, data: bytes) -> bytes:
        """Also within the text of an error."""
        for own, given in self._pairs.items():
            data = data.replace(own[1:-1], given[1:-1])
        return data


def _replaced(data: bytes, own: bytes, given: bytes) -> bytes:
    """Replace an id behind the keys that name one."""
    parts: list[bytes] = []
    done, at = 0, data.find(own)
    for _ in range(MAX_PLACES):
        if at < 0:
            break
        end = at + len(own)
        if _KEY_BEFORE.search(data, max(done, at - _KEY_BYTES), at):
            parts += (data[done:at], given)
            done = end
        at = data.find(own, end)
    return b"".join([*parts, data[done:]]) if parts else data


class RenamingScanner(SseScanner):
    """An SseScanner that replaces the worker's ids by the client's. The first event has the response's id."""

    __slots__ = ("_renaming",)

    def __init__(self, renaming: Renaming) -> None:
        super().__init__()
        self._renaming = renaming

    def feed(self, data: bytes) -> bytes:
        data, renaming = super().feed(data), self._renaming
        if not renaming.has_read and b'"response"' in data:
            for event in event_data(data):
                if not renaming.has_read:
                    renaming.read(event)
        return renaming.renamed(data)
