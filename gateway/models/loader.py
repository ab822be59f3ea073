"""Loader of tokenizers: each source is loaded once, however many models and workers share it.

searching ─ found, read ──► loaded
     │   └ configured, and unusable ──► broken: its models are routed by load
     └─ not found, or of an unsupported kind ──► absent: workers tokenize
       └ a hub out of reach: tried again, after a while
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from gateway.core.rendering import VLLM, Rendering
from gateway.models.hub import Hub, TokenizerNotFound
from gateway.models.template_trials import TRIALS, TemplateTrials
from gateway.tokenization.base import Renderer
from gateway.tokenization.chat_template import NotRendered, TooCostly
from gateway.tokenization.model_families import load, renderer_of
from gateway.tokenization.model_files import read_config, template_sources
from gateway.tokenization.prompt_encoder import PromptError

log = logging.getLogger("kvgate.models")

RETRY_S = 30.0
"""Seconds between two tries at a hub that is out of reach."""


MAX_AT_ONCE = 2
"""Loads at a time: reading a tokenizer takes turns with the event loop, for some tenths of a second, and the
proofs of its templates take a core."""


CLOSE_S = 10.0
"""Seconds to wait for loads in progress at shutdown; large vocabularies take some seconds on a busy
machine."""


class LoadState(Enum):
    SEARCHING = "searching"
    LOADED = "loaded"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Source of a tokenizer for engines of a rendering. `is_given`: configured, so it must be there.
    `is_of_file`: of tokenizer.json as it is (`tokenization/tokenizer_class.py`)."""

    name: str
    template: str = ""
    renderer: str = "auto"
    is_given: bool = False
    rendering: Rendering = VLLM
    is_of_file: bool = False


@dataclass(slots=True, eq=False)
class TokenizerEntry:
    """Source of a tokenizer and the outcome of its load: `where` it was found, or `why` there is none.
    `is_passing`: a later try may succeed."""

    source: TokenizerSource
    state: LoadState = LoadState.SEARCHING
    renderer: Renderer | None = None
    where: str = ""
    why: str = "not loaded yet"
    is_passing: bool = False
    tried_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def describe(self) -> dict[str, Any]:
        status: dict[str, Any] = {
            "tokenizer": self.state.value,
            "from": self.where or None,
            "tokenizer_reason": self.why or None,
        }
        return {**status, **(self.renderer.describe() if self.renderer else {})}


class Loader:
    """Loads tokenizers, each once. `prepare` is called with each before it is used, in a thread."""

    def __init__(
        self, hub: Hub, prepare: Callable[[str, Renderer], None], trials: TemplateTrials = TRIALS
    ) -> None:
        self._hub = hub
        self._prepare = prepare
        self._trials = trials
        self._all: dict[TokenizerSource, TokenizerEntry] = {}
        self._turn = asyncio.Semaphore(MAX_AT_ONCE)
        self._idle = threading.Condition()
        self._num_reading = 0
        self._is_closed = False

    def __iter__(self) -> Iterator[TokenizerEntry]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, source: TokenizerSource) -> TokenizerEntry:
        return self._all.setdefault(source, TokenizerEntry(source))

    def keep(self, used: Set[TokenizerEntry]) -> None:
        """Forget the tokenizers that are neither used nor configured."""
        self._all = {source: each for source, each in self._all.items() if source.is_given or each in used}

    def read(self, tokenizer: TokenizerEntry, *, is_needed: bool = False) -> None:
        """Load now, blocking. `is_needed`: startup depends on it, and the caller reports that it is
        broken."""
        self._finish(tokenizer, self._read(tokenizer.source), is_reported=is_needed)

    def refuse(self, renderer: Renderer, why: str) -> None:
        """Use a tokenizer no more: its template takes too much time or memory."""
        for source in renderer.sources:
            self._trials.refuse(source, why)
        for tokenizer in self:
            if tokenizer.renderer is renderer:
                found = TokenizerEntry(tokenizer.source, LoadState.ABSENT, where=tokenizer.where, why=why)
                self._finish(tokenizer, found)

    def close(self) -> None:
        """Start no more loads and wait for those in progress: an interpreter that ends under a thread of a
        library in Rust takes the process down with SIGABRT. Blocking, for a second or so."""
        with self._idle:
            self._is_closed = True
            self._idle.wait_for(lambda: not self._num_reading, CLOSE_S)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._idle:
            if self._is_closed:
                raise TokenizerNotFound("the gateway is shutting down")
            self._num_reading += 1
        try:
            yield
        finally:
            with self._idle:
                self._num_reading -= 1
                self._idle.notify_all()

    async def have(self, tokenizer: TokenizerEntry) -> None:
        """Load a tokenizer unless it is loaded; concurrent callers wait for one load."""
        async with tokenizer.lock:
            is_due = tokenizer.is_passing and time.monotonic() - tokenizer.tried_s >= RETRY_S
            if tokenizer.state is LoadState.SEARCHING or is_due:
                async with self._turn:
                    self._finish(tokenizer, await _in_thread(partial(self._read, tokenizer.source)))

    def _read(self, source: TokenizerSource) -> TokenizerEntry:
        found = TokenizerEntry(source, LoadState.ABSENT, why="")
        if source.renderer == "worker":
            found.why = "the configuration selects the workers' /tokenize"
            return found
        try:
            place = self._hub.find(source.name)
            found.where = place.how
            template = _text_of(source.template) if source.template else None
            kind = renderer_of(place.directory) if source.renderer == "auto" else source.renderer
            with self._reading():
                self._try_templates(source, place.directory, template)
                other = self._all.get(replace(source, rendering=VLLM))
                shared = other.renderer if other is not None else None
                renderer = load(
                    source.rendering, kind, place.directory, template, shared, is_of_file=source.is_of_file
                )
                self._prepare(source.name, renderer)
            found.state, found.renderer = LoadState.LOADED, renderer
        except TokenizerNotFound as exc:
            found.why, found.is_passing = str(exc), exc.is_passing
            if not (source.is_given or self._is_closed):
                found.why += f"; --tokenizer {source.name}=DIR names one"
        except (NotRendered, TooCostly) as exc:
            found.why = str(exc)
            return found
        except PromptError as exc:
            found.why = str(exc)
        except (RecursionError, MemoryError) as exc:  # a traceback has a thousand lines, or no memory
            found.why = f"{type(exc).__name__} while loading: a file is nested too deeply, or too large"
        except Exception as exc:  # files from elsewhere; one model must not end the others
            log.exception("tokenizer of %s: loading failed", source.name)
            found.why = f"{type(exc).__name__} while loading, see the log"
        if found.state is LoadState.ABSENT and source.is_given:
            found.state = LoadState.BROKEN
        return found

    def _try_templates(self, source: TokenizerSource, directory: Path, template: str | None) -> None:
        """Try the model's chat templates, unless the operator has named their directory or file. Raises
        NotRendered, or PromptError for a broken file."""
        is_trusted = source.is_given and Path(source.name).expanduser().is_dir()
        texts = [template] if template else template_sources(directory, read_config(directory)).values()
        self._trials.check(texts, is_trusted=is_trusted or bool(template))

    def _finish(self, tokenizer: TokenizerEntry, found: TokenizerEntry, *, is_reported: bool = False) -> None:
        is_news = (tokenizer.state, tokenizer.why) != (found.state, found.why)
        tokenizer.state, tokenizer.renderer = found.state, found.renderer
        tokenizer.where, tokenizer.why, tokenizer.is_passing = found.where, found.why, found.is_passing
        tokenizer.tried_s = time.monotonic()
        if is_news and not (is_reported and found.state is LoadState.BROKEN):
            _log_outcome(tokenizer)


def _in_thread(read: Callable[[], TokenizerEntry]) -> asyncio.Future[TokenizerEntry]:
    """Run in a thread that does not delay shutdown: a hub may take minutes to not answer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[TokenizerEntry] = loop.create_future()

    def run() -> None:
        found = read()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_publish, done, found)

    threading.Thread(target=run, name="kvgate-tokenizer", daemon=True).start()
    return done


def _publish(done: asyncio.Future[TokenizerEntry], found: TokenizerEntry) -> None:
    if not done.done():  # cancelled
        done.set_result(found)


def _text_of(path: str) -> str:
    """Read a template's file. Raises PromptError."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise PromptError(f"template {path}: {exc}") from exc


def _log_outcome(tokenizer: TokenizerEntry) -> None:
    source, renderer = tokenizer.source, tokenizer.renderer
    name = source.name if source.rendering == VLLM else f"{source.name} ({source.rendering})"
    if renderer is not None:
        log.info("tokenizer of %s: %s (%s), from %s", name, renderer.kind, renderer.why, tokenizer.where)
        for template in renderer.describe()["templates"]:
            what = name, template["name"], template["mode"], template["reason"]
            log.info("chat template of %s, %s: %s rendering (%s)", *what)
    elif tokenizer.state is LoadState.BROKEN:
        log.error("tokenizer of %s: broken (%s); its models are routed by load only", name, tokenizer.why)
    else:
        log.info("tokenizer of %s: not available, its workers tokenize: %s", name, tokenizer.why)
