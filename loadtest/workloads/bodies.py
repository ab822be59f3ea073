"""Request bodies for loadgen, new in their last words: no cache of whole bodies would help.

    small   a short question that was never asked
    warm    a conversation that the workers hold, and a new message
    grow    one text that has grown by a piece since the request before, everything else known
    new     a text that shares no line with any before it

They end in ENDING, or as STREAMED in being asked for a stream, or as STREAMED_WITH_USAGE for one that ends
with its usage.

In the file (read by `c/bodies.h`) bodies share pieces: a line `P <bytes>` is a piece of JSON text, a line `B
0 17 4` a body made of pieces by number.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadtest.workloads.conversations import Conversations

NEW_BYTES = 200
GROWTH_BYTES = 1024
ENDING = b',"max_tokens":64,"temperature":0.7}'
STREAMED = b',"stream":true' + ENDING
STREAMED_WITH_USAGE = b',"stream_options":{"include_usage":true}' + STREAMED

Message = Mapping[str, str]


class Bodies:
    """Pieces, and bodies made of them."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.bodies: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self.bodies)

    def piece(self, data: bytes) -> int:
        """Add a piece. Returns its number. `data` holds no line end; JSON has no raw one."""
        if b"\n" in data:
            raise ValueError("a piece of a body holds a line end")
        self.pieces.append(data)
        return len(self.pieces) - 1

    def body(self, *pieces: int) -> None:
        self.bodies.append(pieces)

    def __getitem__(self, number: int) -> bytes:
        return b"".join(self.pieces[piece] for piece in self.bodies[number])

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            file.writelines(b"P %b\n" % piece for piece in self.pieces)
            file.writelines(b"B %b\n" % b" ".join(b"%d" % n for n in body) for body in self.bodies)


class Texts:
    """Real text in pieces of a given size, and text made new line by line."""

    def __init__(self, model: str, seed: int) -> None:
        self.model = model
        self._rng = random.Random(seed)
        self._source = Conversations(model, seed)
        self._lines = [line for line in self._source.piece(500_000).splitlines() if line.strip()]
        self._num_questions = 0

    def conversation(self, num_messages: int, num_bytes: int) -> list[dict[str, str]]:
        """A system message, then user and assistant in turn; the next one is the user's."""
        size = num_bytes // num_messages
        roles = ["system", *["user", "assistant"] * num_messages]
        return [{"role": role, "content": self._source.piece(size)} for role in roles[: num_messages | 1]]

    def question(self, num_bytes: int = NEW_BYTES) -> str:
        """Question that is new by its number; the rest is an excerpt."""
        self._num_questions += 1
        return f"{self._num_questions:07d} {self._source.piece(num_bytes - 8)}"

    def document(self, num_bytes: int) -> str:
        """Lines of the library in an order that they never had: no long part of it was ever seen."""
        lines = self._rng.choices(self._lines, k=num_bytes // 30)
        return f"{self._rng.getrandbits(64):016x}\n" + "\n".join(lines)[: num_bytes - 17]


def small(texts: Texts, num: int, ending: bytes = ENDING) -> Bodies:
    bodies = Bodies()
    head = bodies.piece(_open_chat(texts.model, []))
    end = bodies.piece(b'"}]' + ending)
    for _ in range(num):
        bodies.body(head, bodies.piece(_escaped(texts.question(100))), end)
    return bodies


def warm(
    texts: Texts, conversations: Sequence[Sequence[Message]], num: int, ending: bytes = ENDING
) -> Bodies:
    """The conversations in turn, each with a message that was never sent."""
    bodies = Bodies()
    heads = [bodies.piece(_open_chat(texts.model, conversation)) for conversation in conversations]
    end = bodies.piece(b'"}]' + ending)
    for i in range(num):
        bodies.body(heads[i % len(heads)], bodies.piece(_escaped(texts.question())), end)
    return bodies


def grow(texts: Texts, documents: Sequence[str], num: int, connections: int, num_steps: int = 16) -> Bodies:
    """Bodies of growing texts. Body i is of connection i modulo `connections`: each lets a text of its own
    grow.

    After `num_steps` a connection goes back to the beginning of its document, which is known, and lets it
    grow in another way, so that sizes stay what they are and each request is new by its last piece.
    """
    bodies = Bodies()
    heads = [bodies.piece(_open_text(texts.model, document)) for document in documents]
    end = bodies.piece(b'"' + ENDING)
    grown: list[list[int]] = [[] for _ in range(connections)]
    for i in range(num):
        pieces = grown[i % connections]
        if len(pieces) in (0, num_steps + 1):
            pieces[:] = [heads[i % connections % len(heads)]]
        pieces.append(bodies.piece(_escaped(texts.question(GROWTH_BYTES))))
        bodies.body(*pieces, end)
    return bodies


def new(texts: Texts, num: int, num_bytes: int, ending: bytes = ENDING) -> Bodies:
    bodies = Bodies()
    head, end = bodies.piece(_open_text(texts.model, "")), bodies.piece(b'"' + ending)
    for _ in range(num):
        bodies.body(head, bodies.piece(_escaped(texts.document(num_bytes))), end)
    return bodies


def parse(data: bytes) -> Iterator[bytes]:
    """Bodies of a file, as loadgen sends them."""
    pieces: list[bytes] = []
    for line in data.splitlines():
        kind, _, rest = line.partition(b" ")
        if kind == b"P":
            pieces.append(rest)
        elif kind == b"B":
            yield b"".join(pieces[int(number)] for number in rest.split())
        else:
            raise ValueError(f"neither a piece nor a body: {line[:40]!r}")


def _open_chat(model: str, messages: Sequence[Message]) -> bytes:
    """A chat body up to the text of one more message of the user's."""
    known = b"".join(msgspec.json.encode(message) + b"," for message in messages)
    return b'{"model":%b,"messages":[%b{"role":"user","content":"' % (_json(model), known)


def _open_text(model: str, prompt: str) -> bytes:
    """A completion body up to where its prompt goes on."""
    return b'{"model":%b,"prompt":"%b' % (_json(model), _escaped(prompt))


def _escaped(text: str) -> bytes:
    """The inside of a JSON string."""
    return _json(text)[1:-1]


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
