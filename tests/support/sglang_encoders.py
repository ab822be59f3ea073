"""Encoders of chats as versions of SGLang have them."""

import re

from gateway.core.rendering import Rendering
from gateway.tokenization.sglang import SglangEncoder
from tests import ROOT
from tests.support.corpus import TEMPLATES

TOKENIZER = ROOT / "engines" / "sim" / "tokenizer"
NEW, OLD = (0, 5, 23), (0, 5, 10)


def load_encoder(template: str, version: tuple[int, ...] = NEW) -> SglangEncoder:
    source = (TEMPLATES / f"{template}.jinja").read_text("utf-8")
    return SglangEncoder.load_as(Rendering("sglang", version), TOKENIZER, source)


def version_of(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name)[:3]))
