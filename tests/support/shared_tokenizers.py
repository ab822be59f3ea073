"""Tokenizers and proofs of templates that the gateways and simulated engines of a test process share.

Each gateway loads its tokenizer, compiles its templates and proves them, which takes 0.2 CPU seconds: most
of a gateway's start, hundreds of times. The results depend on nothing but their inputs, so that a second
gateway gets those of the first. A simulated engine's words cost as much, and are shared likewise. A wheel's
compiled classes cannot be replaced: there, tokenizers and words alone are shared.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from engines.sim.server import TextModel
from gateway import is_compiled
from gateway.app import bundled_tokenizer
from gateway.core.rendering import VLLM
from gateway.core.token_runs import TokenRunCache
from gateway.tokenization.jinja_env import ENVIRONMENT
from gateway.tokenization.model_families import load
from gateway.tokenization.prompt_encoder import PromptEncoder
from gateway.tokenization.render_settings import RenderSetting
from gateway.tokenization.template_stability import Stubs
from gateway.tokenization.tokenizer import CACHE_BYTES, Rebuild, Tokenizer

_load = Tokenizer.load
_prove = RenderSetting.prove
_load_texts = TextModel.load
_own_parse, _own_compile = ENVIRONMENT.parse, ENVIRONMENT.from_string
_parse, _compile = cache(_own_parse), cache(_own_compile)
_tokenizers: dict[tuple[Any, ...], Tokenizer] = {}
_proofs: dict[tuple[Any, ...], Stubs] = {}
_texts: dict[tuple[Any, ...], TextModel] = {}


def share() -> None:
    """Have tokenizers and proofs shared from now on."""
    _use(_shared_load, _parse, _compile, _shared_prove, _shared_texts)


@contextlib.contextmanager
def unshared() -> Iterator[None]:
    """Have each load and proof done where it is asked for."""
    _use(_load, _own_parse, _own_compile, _prove, _load_texts)
    try:
        yield
    finally:
        share()


def _use(load: Any, parse: Any, compile_template: Any, prove: Any, load_texts: Any) -> None:
    replaced: list[tuple[Any, str, Any]] = [
        (TextModel, "load", load_texts),
        (Tokenizer, "load", load),
        (ENVIRONMENT, "parse", parse),
        (ENVIRONMENT, "from_string", compile_template),
        (RenderSetting, "prove", prove),
    ]
    for owner, name, function in replaced if not is_compiled else replaced[:-1]:
        setattr(owner, name, function)


def warm() -> None:
    """Load and prove the bundled model."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would not survive a fork
    renderer = load(VLLM, "jinja", bundled_tokenizer(), None)
    assert isinstance(renderer, PromptEncoder)
    renderer.remember(TokenRunCache(1 << 20), datetime.now(), lambda why: None)
    TextModel.load(bundled_tokenizer())
    del os.environ["TOKENIZERS_PARALLELISM"]


def _shared_load(
    path: Path,
    added: Sequence[Any] = (),
    specials: Sequence[Any] = (),
    cache_bytes: int = CACHE_BYTES,
    rebuild: Rebuild | None = None,
) -> Tokenizer:
    if rebuild is not None:
        return _load(path, added, specials, cache_bytes, rebuild)
    try:
        digest = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return _load(path, added, specials, cache_bytes)  # it says what is wrong
    key = digest, json.dumps([added, specials]), cache_bytes
    if key not in _tokenizers:
        _tokenizers[key] = _load(path, added, specials, cache_bytes)
    return _tokenizers[key]


def _shared_texts(directory: Path) -> TextModel:
    """Texts of a simulated engine, which workers of one process can share."""
    try:
        files = [path for path in sorted(directory.iterdir()) if path.is_file()]
        digests = [(path.name, hashlib.sha256(path.read_bytes()).digest()) for path in files]
    except OSError:
        return _load_texts(directory)  # it says what is wrong
    key = *digests, datetime.now().date()
    if key not in _texts:
        _texts[key] = _load_texts(directory)
    return _texts[key]


def _shared_prove(setting: RenderSetting, marks: Sequence[str]) -> bool:
    if setting.stubs is not None:
        return True
    template, day = setting.template, setting.now.date()
    key = template.source, type(template), json.dumps(setting.variables, sort_keys=True), day, tuple(marks)
    if key in _proofs:
        setting.stubs = _proofs[key]
    elif _prove(setting, marks):
        assert setting.stubs is not None
        _proofs[key] = setting.stubs
    return setting.stubs is not None
