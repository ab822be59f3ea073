"""Tokens of conversations at the cost of their new messages.

    known run ── stub + new messages, rendered and stripped ── tokens of the new text
        └─ saved at the last cuts of the new text, for the next turn

The result equals rendering and tokenizing the whole, because text is only cut at points that were proved for
the template and the request's variables (template_stability.py), at special tokens, where text is tokenized
independently. Unusual conversations have no cut point and are rendered whole.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from gateway.core.blocks import Tokens
from gateway.core.chat_messages import Messages
from gateway.core.token_runs import ContinuedTokens, TokenRun, TokenRunCache
from gateway.tokenization.chat_template import Message, PromptError
from gateway.tokenization.conversation_features import BEHIND, USER, features, kind_of
from gateway.tokenization.message_frame import plain_content
from gateway.tokenization.probe_conversations import CutPoint
from gateway.tokenization.render_settings import RenderSetting

# A cut behind the system message is made while a conversation is short: later it was made before.
MAX_LEAD_MESSAGES: Final = 8
MAX_TRIES: Final = 3
"""Known runs that a chat is tried to continue, as many as a request saves: each try decodes what follows."""
USE_BITS: Final = 2 * BEHIND
FRAMED: Final = 1 << 40
"""Bit of a use: the new text comes from a frame (`message_frame.py`), not from a rendering."""
Found: TypeAlias = tuple[ContinuedTokens, int]
"""Tokens that were put together, and the use: the cut and the features that they rely on."""
LED: Final = frozenset({CutPoint.LEAD, CutPoint.TURN_LED, CutPoint.STEP_LED})


class ConversationCache:
    """Cache of one model's conversations. `encode` makes tokens of text that begins at a special token."""

    def __init__(self, runs: TokenRunCache, encode: Callable[[str], Tokens]) -> None:
        self._runs = runs
        self._encode = encode

    def __repr__(self) -> str:
        return f"ConversationCache({self._runs!r})"

    def known(self, chat: Messages, setting: RenderSetting, max_tries: int = MAX_TRIES) -> Found | None:
        """Tokens of a chat that continues one of the `max_tries` longest known runs; None if none fits."""
        stubs = setting.stubs
        if not stubs:
            return None
        for number in range(len(chat.names) - 1, 0, -1):
            run = self._runs.get(chat.names[number - 1])
            if run is None or run.proof is not stubs:
                continue
            if not max_tries:
                return None
            max_tries -= 1
            stub = stubs[run.cut]
            new = setting.template.conversation(chat.decode(number))
            in_new = features(new, stub.kind, setting.markup)
            if (run.features | in_new << BEHIND) & ~stub.allowed or new[0]["role"] != stub.next_role:
                continue
            use = run.cut << USE_BITS | run.features | in_new << BEHIND
            text = _plain_text(new, in_new, setting, run.cut)
            if text is not None:
                use |= FRAMED
            else:
                text = stub.rest(setting.render([*stub.messages, *new]))
            if text is not None:
                return self._tokens(run, text, new, chat.names[number:], setting), use
        return None

    def first(self, messages: Sequence[Message], setting: RenderSetting) -> Found | None:
        """Tokens of a conversation of one plain message; None if it has to be rendered."""
        text = _plain_text(messages, features(messages, "", setting.markup), setting, None)
        return None if text is None else (ContinuedTokens(self._encode(text)), FRAMED)

    def tokens_of_all(
        self, chat: Messages, messages: Sequence[Message], text: str, setting: RenderSetting
    ) -> ContinuedTokens:
        """Tokens of all `messages`, rendered as `text`; they are cached."""
        return self._tokens(None, text, messages, chat.names, setting)

    def _tokens(
        self,
        run: TokenRun | None,
        text: str,
        new: Sequence[Message],
        names: Sequence[bytes],
        setting: RenderSetting,
    ) -> ContinuedTokens:
        """Tokens of `text`, rendered from `new`, behind those of `run`; cached at its last cut points."""
        if run is None and len(new) == 1:
            return ContinuedTokens(self._encode(text))  # no next turn can begin before its only message
        stubs = setting.stubs or {}
        kind, is_led = (stubs[run.cut].kind, run.cut in LED) if run else ("", new[0]["role"] == "system")
        known, at, start = run, 0, 0
        for place, cut, end in _ends(text, new, _places(new, is_led, run is None), setting):
            found = (run.features if run else 0) | features(new[at:place], kind, setting.markup)
            if found & ~stubs[cut].allowed:
                break
            run = TokenRun(names[place - 1], run, self._encode(text[start:end]), setting.stubs, cut, found)
            kind, at, start = kind_of(new[place - 1]), place, end
        rest = self._encode(text[start:])
        if run is None:
            return ContinuedTokens(rest)
        if run is not known or len(self._runs):
            self._runs.use(run)
        tokens = run.all_tokens()
        tokens.extend(rest)
        return ContinuedTokens(tokens, run)


def _plain_text(
    new: Sequence[Message], found: int, setting: RenderSetting, cut: CutPoint | None
) -> str | None:
    """Text of a single plain user message; None for others, and with tools, which some templates print beside
    it."""
    if len(new) != 1 or found != USER or setting.variables["tools"]:
        return None
    content = plain_content(new[0])
    return setting.render_user(content, cut) if content else None


def _ends(
    text: str, new: Sequence[Message], places: Sequence[tuple[int, CutPoint]], setting: RenderSetting
) -> list[tuple[int, CutPoint, int]]:
    """Cut points of `text` with their offsets: before the text that the messages behind them render to."""
    ends: list[tuple[int, CutPoint, int]] = []
    last, left = len(text), max(len(new), MAX_LEAD_MESSAGES)
    for place, cut in reversed(places):
        left -= len(new) - place
        if left < 0:
            break  # it would cost more than the whole once more
        stub = setting.stubs.get(cut) if setting.stubs else None
        if stub is None or features(new[place:], stub.kind, setting.markup) << BEHIND & ~stub.allowed:
            continue  # what follows may have changed the text before
        rest = stub.rest(_try(setting, [*stub.messages, *new[place:]]))
        end = len(text) - len(rest) if rest else 0
        if rest and 0 < end < last and text.endswith(rest):
            ends.append((place, cut, end))
            last = end
    return ends[::-1]


def _try(setting: RenderSetting, messages: Sequence[Message]) -> str:
    try:
        return setting.render(messages)
    except PromptError:
        return ""


def _places(new: Sequence[Message], is_led: bool, is_all: bool) -> list[tuple[int, CutPoint]]:
    """Last places at which a next turn may begin, in order; behind the first message of `new`."""
    turn = step = None
    for at in range(len(new) - 1, 0, -1):
        kinds = kind_of(new[at - 1]), new[at]["role"]
        if kinds == ("assistant", "user"):
            turn = (at, CutPoint.TURN_LED if is_led else CutPoint.TURN)
            break
        if step is None and kinds == ("tool", "assistant"):
            step = (at, CutPoint.STEP_LED if is_led else CutPoint.STEP)
    is_short = is_all and is_led and 1 < len(new) <= MAX_LEAD_MESSAGES
    lead = (1, CutPoint.LEAD) if is_short and new[1]["role"] == "user" else None
    return [place for place in (lead, turn, step) if place]
