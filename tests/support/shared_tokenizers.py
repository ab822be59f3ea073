"""Tokenizers and proofs of templates that the gateways of a process share, in tests of whole gateways.

Each gateway loads its tokenizer, compiles its templates and proves them, which takes 0.2 CPU seconds: most
of a gateway's start, hundreds of times. The results depend on nothing but their inputs, so that a second
gateway gets those of the first. A wheel's compiled classes cannot be replaced: there, tokenizers alone are
shared.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from gateway import is_compiled
from gateway.app import bundled_tokenizer
from gateway.core.rendering import VLLM
from gateway.core.token_runs import TokenRunCache
from gateway.tokenization.chat_template import ENVIRONMENT
from gateway.tokenization.prompt_encoder import PromptEncoder
from gateway.tokenization.registry import load
from gateway.tokenization.render_settings import RenderSetting
from gateway.tokenization.template_stability import Stubs
from gateway.tokenization.tokenizer import CACHE_BYTES, Tokenizer

_load = Tokenizer.load
_prove = RenderSetting.prove
_parse = cache(ENVIRONMENT.parse)
_compile = cache(ENVIRONMENT.from_string)
_tokenizers: dict[tuple[Any, ...], Tokenizer] = {}
_proofs: dict[tuple[Any, ...], Stubs] = {}


def share(replace: Callable[[object, str, object], None] = setattr) -> None:
    """Have tokenizers and proofs shared from now on; `replace` sets an attribute."""
    replace(Tokenizer, "load", _shared_load)
    replace(ENVIRONMENT, "parse", _parse)
    replace(ENVIRONMENT, "from_string", _compile)
    if not is_compiled:
        replace(RenderSetting, "prove", _shared_prove)


def warm() -> None:
    """Load and prove the bundled model."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would not survive a fork
    renderer = load(VLLM, "jinja", bundled_tokenizer(), None)
    assert isinstance(renderer, PromptEncoder)
    renderer.remember(TokenRunCache(1 << 20), datetime.now(), lambda why: None)
    del os.environ["TOKENIZERS_PARALLELISM"]


def _shared_load(
    path: Path,
    added: Sequence[Any] = (),
    specials: Sequence[Any] = (),
    cache_bytes: int = CACHE_BYTES,
) -> Tokenizer:
    try:
        digest = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return _load(path, added, specials, cache_bytes)  # it says what is wrong
    key = digest, json.dumps([added, specials]), cache_bytes
    if key not in _tokenizers:
        _tokenizers[key] = _load(path, added, specials, cache_bytes)
    return _tokenizers[key]


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
