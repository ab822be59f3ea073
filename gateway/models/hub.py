"""Location of a model's tokenizer: a directory, the cache of the Hugging Face hub, or the hub.

Calls block, so they run in a thread. The hub's library reads its usual environment (HF_HOME, HF_HUB_CACHE,
HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE, HF_TOKEN, HF_TOKEN_PATH, HF_ENDPOINT).
"""

import logging
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("kvgate.models")

FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "config.json",
    "tekken.json",
    "params.json",
]
"""Files that are fetched of a model: some megabytes, never its weights."""

MARKS = "tokenizer.json", "tekken.json"
"""Files that mark a directory with a tokenizer."""

_ON_HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


@dataclass(frozen=True, slots=True)
class TokenizerLocation:
    """Directory of a tokenizer; `how` describes where it was found, for people."""

    directory: Path
    how: str


class TokenizerNotFound(Exception):
    """No tokenizer was found; the message names the places and a remedy. `is_passing`: a later try may
    succeed."""

    def __init__(self, reason: str, *, is_passing: bool = False) -> None:
        super().__init__(reason)
        self.is_passing = is_passing


@dataclass(slots=True)
class Hub:
    """Finds model files on disk and, with `uses_hub`, on the Hugging Face hub. If the hub's cache cannot be
    written, files go to a temporary directory until `close`."""

    uses_hub: bool = True
    _own: tempfile.TemporaryDirectory[str] | None = None

    def find(self, name: str) -> TokenizerLocation:
        """Find a tokenizer by directory, or by name on the hub. Raises TokenizerNotFound."""
        path = Path(name).expanduser()
        if _holds_tokenizer(path):
            return TokenizerLocation(path, f"the directory {path}")
        if not _ON_HUB.fullmatch(name):
            what = "has no tokenizer.json" if path.is_dir() else "is not a directory"
            raise TokenizerNotFound(f"{name} {what}")
        if path.is_dir():
            raise TokenizerNotFound(f"{path} has no tokenizer.json")
        try:
            return self._cached(name) or self._fetched(name)
        except ValueError as exc:  # a name that the hub does not accept
            raise TokenizerNotFound(f"{name}: {exc}") from exc

    def close(self) -> None:
        if self._own is not None:
            self._own.cleanup()
            self._own = None

    def _cached(self, name: str) -> TokenizerLocation | None:
        from huggingface_hub import constants, try_to_load_from_cache

        for mark in MARKS:
            path = try_to_load_from_cache(name, mark)
            if isinstance(path, str):
                return TokenizerLocation(Path(path).parent, f"the cache in {constants.HF_HUB_CACHE}")
        return None

    def _fetched(self, name: str) -> TokenizerLocation:
        """Fetch from the hub. Names without an organisation are not looked up: workers choose them freely,
        and they may be confidential."""
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
        from huggingface_hub.utils.tqdm import disable_progress_bars

        where = f"the cache in {constants.HF_HUB_CACHE}"
        if "/" not in name:
            raise TokenizerNotFound(
                f"{name} is neither a directory nor an ORG/NAME on the hub, and not in {where}"
            )
        if not self.uses_hub or constants.HF_HUB_OFFLINE:
            why = "the environment is set to offline" if self.uses_hub else "hub = false in [tokenizer]"
            raise TokenizerNotFound(f"{name} is not in {where}, and the hub is not used: {why}")
        disable_progress_bars()  # they write to stderr, where the log is
        cache = constants.HF_HUB_CACHE if _is_writable(Path(constants.HF_HUB_CACHE)) else self._room()
        try:
            path = Path(snapshot_download(name, allow_patterns=FILES, cache_dir=cache))
        except GatedRepoError as exc:
            raise TokenizerNotFound(
                f"access to {name} on the hub is restricted: give a token with access in HF_TOKEN, or a "
                "token file in HF_TOKEN_PATH"
            ) from exc
        except RepositoryNotFoundError as exc:
            raise TokenizerNotFound(f"{constants.ENDPOINT}: {name} not found, or no access") from exc
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as exc:
            words = str(exc).strip().partition("\n")[0] or type(exc).__name__
            raise TokenizerNotFound(
                f"{constants.ENDPOINT}: fetching {name} failed: {words}", is_passing=True
            ) from exc
        if not _holds_tokenizer(path):
            raise TokenizerNotFound(f"{name} on {constants.ENDPOINT} has no tokenizer.json")
        return TokenizerLocation(path, f"{constants.ENDPOINT}, kept in {cache}")

    def _room(self) -> str:
        if self._own is None:
            self._own = tempfile.TemporaryDirectory(prefix="kvgate-hub-")
        return self._own.name


def _holds_tokenizer(path: Path) -> bool:
    return any((path / mark).is_file() for mark in MARKS)


def _is_writable(path: Path) -> bool:
    """True if the directory can be written, or created."""
    there = next((each for each in (path, *path.parents) if each.exists()), Path("/"))
    return os.access(there, os.W_OK)
