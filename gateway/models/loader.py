"""Tokenizers by where they come from: each is loaded once, however many models and workers share it.

sought ─ found, read ──► loaded
   │   └ given, and wrong ──► broken: its models are routed on load
   └─ found nowhere, or of a kind that is not made here ──► absent: workers are asked
            └ a hub out of reach: tried again, after a while
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from gateway.models.hub import NotFound, Places
from gateway.tokenization.base import Renderer
from gateway.tokenization.prompt_encoder import PromptError
from gateway.tokenization.registry import RENDERERS, renderer_of

log = logging.getLogger("kvgate.models")

RETRY_S = 30.0
"""Between two tries at a hub that is out of reach."""


MAX_AT_ONCE = 2
"""To read one and to prove its templates takes turns with the loop, for a second or so."""


CLOSE_S = 10.0
"""For what is being read when the gateway stops; large vocabularies take some seconds on a busy machine."""


class State(Enum):
    SOUGHT = "sought"
    LOADED = "loaded"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be loaded. `is_given`: in the configuration, so that it must be there."""

    name: str
    template: str = ""
    renderer: str = "auto"
    is_given: bool = False


@dataclass(slots=True, eq=False)
class Shelved:
    """A source and what came of it: `where` it was found, `why` there is none. `is_passing`: it may come
    right by itself."""

    source: Source
    state: State = State.SOUGHT
    renderer: Renderer | None = None
    where: str = ""
    why: str = "it is being looked for"
    is_passing: bool = False
    tried_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def describe(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "tokenizer": self.state.value,
            "from": self.where or None,
            "why_none": self.why or None,
        }
        return {**told, **(self.renderer.describe() if self.renderer else {})}


class Shelf:
    """`prepare` is called with each tokenizer before it is used, in a thread."""

    def __init__(self, places: Places, prepare: Callable[[str, Renderer], None]) -> None:
        self._places = places
        self._prepare = prepare
        self._all: dict[Source, Shelved] = {}
        self._turn = asyncio.Semaphore(MAX_AT_ONCE)
        self._idle = threading.Condition()
        self._num_reading = 0
        self._is_closed = False

    def __iter__(self) -> Iterator[Shelved]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, source: Source) -> Shelved:
        return self._all.setdefault(source, Shelved(source))

    def read(self, shelved: Shelved, *, is_needed: bool = False) -> None:
        """Blocking. `is_needed`: nothing starts without it, so who reads it tells that it is broken."""
        self._finish(shelved, self._read(shelved.source), is_told=is_needed)

    def close(self) -> None:
        """Nothing more is read, and what is being read is waited for: an interpreter that ends under a thread
        of a library in Rust takes the process down with SIGABRT. Blocking, for a second or so."""
        with self._idle:
            self._is_closed = True
            self._idle.wait_for(lambda: not self._num_reading, CLOSE_S)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._idle:
            if self._is_closed:
                raise NotFound("the gateway stops")
            self._num_reading += 1
        try:
            yield
        finally:
            with self._idle:
                self._num_reading -= 1
                self._idle.notify_all()

    async def have(self, shelved: Shelved) -> None:
        """Load it, where nobody has; one of those who want it does."""
        async with shelved.lock:
            is_due = shelved.is_passing and time.monotonic() - shelved.tried_s >= RETRY_S
            if shelved.state is State.SOUGHT or is_due:
                async with self._turn:
                    self._finish(shelved, await _in_thread(partial(self._read, shelved.source)))

    def _read(self, source: Source) -> Shelved:
        found = Shelved(source, State.ABSENT, why="")
        if source.renderer == "worker":
            found.why = "the configuration says that workers are to be asked"
            return found
        try:
            place = self._places.find(source.name)
            found.where = place.how
            template = _text_of(source.template) if source.template else None
            kind = renderer_of(place.directory) if source.renderer == "auto" else source.renderer
            with self._reading():
                renderer = RENDERERS[kind](place.directory, template)
                self._prepare(source.name, renderer)
            found.state, found.renderer = State.LOADED, renderer
        except NotFound as exc:
            found.why, found.is_passing = str(exc), exc.is_passing
            if not (source.is_given or self._is_closed):
                found.why += f"; --tokenizer {source.name}=DIR names one"
        except PromptError as exc:
            found.why = str(exc)
        except Exception as exc:  # noqa: BLE001  files from elsewhere; one model must not end the others
            log.exception("tokenizer of %s could not be read", source.name)
            found.why = f"{type(exc).__name__} while it was read, see the log"
        if found.state is State.ABSENT and source.is_given:
            found.state = State.BROKEN
        return found

    def _finish(self, shelved: Shelved, found: Shelved, *, is_told: bool = False) -> None:
        is_news = (shelved.state, shelved.why) != (found.state, found.why)
        shelved.state, shelved.renderer = found.state, found.renderer
        shelved.where, shelved.why, shelved.is_passing = found.where, found.why, found.is_passing
        shelved.tried_s = time.monotonic()
        if is_news and not (is_told and found.state is State.BROKEN):
            _say(shelved)


def _in_thread(read: Callable[[], Shelved]) -> asyncio.Future[Shelved]:
    """In one that nobody waits for when the gateway stops: a hub may take minutes to not answer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Shelved] = loop.create_future()

    def run() -> None:
        found = read()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_tell, done, found)

    threading.Thread(target=run, name="kvgate-tokenizer", daemon=True).start()
    return done


def _tell(done: asyncio.Future[Shelved], found: Shelved) -> None:
    if not done.done():  # nobody wants it any more
        done.set_result(found)


def _text_of(path: str) -> str:
    """Raises PromptError."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise PromptError(f"template {path}: {exc}") from exc


def _say(shelved: Shelved) -> None:
    name, renderer = shelved.source.name, shelved.renderer
    if renderer is not None:
        log.info("tokenizer of %s: %s (%s), from %s", name, renderer.kind, renderer.why, shelved.where)
        for template in renderer.describe()["templates"]:
            what = name, template["name"], template["rendering"], template["why"]
            log.info("chat template of %s, %s: %s rendering (%s)", *what)
    elif shelved.state is State.BROKEN:
        log.error("tokenizer of %s is broken, its models are routed on load: %s", name, shelved.why)
    else:
        log.info("tokenizer of %s is not here, its workers are asked: %s", name, shelved.why)
