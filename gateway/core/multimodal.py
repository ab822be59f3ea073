"""Prompts with images, sounds and films: exact tokens up to the first one, links after it.

    messages    text ─ text ─ text + image ─ text ─ …
                exact tokens ──┘     links ───────►

Before the first medium, a prompt is what it would be in any other chat (`Prompts.before_media`). From there
on its tokens are not known: how many an image takes is the model's secret. So each part is a link: a hash of
all before it and of itself, an image as the client names it (`uuid`, which the engine takes for its identity
too), else as its data or its URL. No URL is ever fetched. Links are matched with earlier requests, so that
an image's next question goes where the image was; they are assumed, never counted as cached.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from gateway.core.blocks import BlockHash
from gateway.core.json_values import encode_sorted

MEDIA = frozenset(
    {"image_url", "image_pil", "image_embeds", "audio_url", "audio_embeds", "input_audio"}
    | {"video_url", "video_embeds"}
)
"""Types of content parts; each names the field that has the data."""

MEDIUM_TOKENS = 576
"""A guess at one's length, for the work ahead: an image of 336 pixels in patches of 14."""
TEXT_BYTES = 4
"""Bytes of text per token, approximately."""


BEFORE_MEDIA = "before media"
"""The source of such a prompt's tokens: the engine reports more cached tokens than were predicted."""


class Links(NamedTuple):
    """The parts after the exact tokens: a hash of each part and all before it, and its approximate length."""

    hashes: Sequence[BlockHash] = ()
    num_tokens: Sequence[int] = ()


def first_medium(messages: Sequence[Mapping[str, Any]]) -> tuple[int, int] | None:
    """Message and part of the first one."""
    for i, message in enumerate(messages):
        for j, part in enumerate(_parts(message)):
            if _kind(part) in MEDIA:
                return i, j
    return None


def media_endings(role: str, texts: object, medium: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Ways in which a conversation may go on from its first medium: with it and without, last of all and not.
    What they all begin with does not depend on it.

    vLLM hands a medium to an "openai" template as a part of its own, behind the parts `texts`; in a text
    (where `texts` is no list), it goes before all of it.
    """
    after = [{"role": "assistant", "content": "1"}, {"role": "user", "content": "2"}]
    if not isinstance(texts, list):
        yield [{"role": role, "content": "0"}]
        yield [{"role": role, "content": "3"}, *after]
        return
    shown = {"type": _kind(medium).partition("_")[0].replace("input", "audio")}
    for own in ([shown], [shown, {"type": "text", "text": "0"}], [{"type": "text", "text": "3"}]):
        for following in ([], after):
            yield [{"role": role, "content": [*texts, *own]}, *following]


def links(messages: Sequence[Mapping[str, Any]], root: bytes) -> Links:
    """From the first medium on; `root` is all that a prompt depends on beside its messages."""
    value, has_begun = xxh3_64_intdigest(root), False
    hashes: list[BlockHash] = []
    counts: list[int] = []
    for message in messages:
        for name, num_tokens, is_medium in _named(message):
            value = xxh3_64_intdigest(name, value)
            has_begun = has_begun or is_medium
            if has_begun:
                hashes.append(BlockHash(value))
                counts.append(num_tokens)
    return Links(hashes, counts)


def _named(message: Mapping[str, Any]) -> Iterator[tuple[bytes, int, bool]]:
    """A name for each part, its tokens, whether it is a medium; the first has the message's other fields."""
    others = {key: value for key, value in message.items() if key != "content"}
    before = encode_sorted(others)
    parts: Sequence[Any] = _parts(message) or ("",)
    for part in parts:
        kind = _kind(part)
        if kind in MEDIA:
            own = {"uuid": part["uuid"]} if isinstance(part.get("uuid"), str) else part.get(kind)
            yield before + encode_sorted((kind, own)), MEDIUM_TOKENS, True
        else:
            text = part.get("text", part) if isinstance(part, Mapping) else part
            name = encode_sorted(text)
            yield before + name, len(name) // TEXT_BYTES, False
        before = b""


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else () if content is None else (content,)


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else ""
