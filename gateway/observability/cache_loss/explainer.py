"""Explainer: attributes each token of a prompt to a cause of loss, when the request is sent.

cached at another worker     candidates of the decision
cached once                  `BlockHistory`, by block hashes; how the blocks were lost
known text                   `EarlierPrompts`: in another space (adapter, salt), or after another prefix
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from gateway.core.blocks import BlockHash, Tokens, root_hash
from gateway.core.chat_messages import Messages
from gateway.core.decision import Candidate, Decision, Prompt
from gateway.core.errors import InvalidRequest
from gateway.core.worker import WorkerId
from gateway.costs.token_work import work_ahead
from gateway.observability.cache_loss.attribution import LossCause, TokenSegment, TokenSpan, lay_out
from gateway.observability.cache_loss.block_history import (
    BlockHistory,
    BlockState,
    CacheLifetimes,
    life_of,
    state_of,
)
from gateway.observability.cache_loss.break_location import MAX_SHOWN_TOKENS, PrefixBreak, describe_break
from gateway.observability.cache_loss.prompt_similarity import (
    MAX_TOKENS,
    MIN_TOKENS,
    CacheNamespace,
    EarlierPrompts,
    Similarity,
    mark,
)

MAX_PLACED_TOKENS: Final = 1 << 13
"""Limit on the tokens of text that is searched for the message of a break, once per break."""

MAX_BLOCKS_ASKED: Final = 500
"""Limit on blocks looked up for how they were lost; of more, every n-th one stands for those before it."""

Decode = Callable[[str, Tokens], str | None]
"""The text of a model's tokens; None if kvgate does not have the tokenizer."""

KnownBreak = Callable[[str, int], PrefixBreak | None]
"""The break that was found before for a model and a family of prompts."""


class DecidedPrompt:
    """A request that was sent, queued with its text until it is explained."""

    def __init__(
        self,
        decision: Decision,
        prompt: Prompt,
        blocks: Sequence[Sequence[BlockHash]],
        messages: Messages | None,
        cache_salt: str | None,
        reads_cache: bool,
        num_bytes: int,
    ) -> None:
        self.decision = decision
        self.prompt = prompt
        self.blocks = blocks
        self.messages = messages
        self.cache_salt = cache_salt
        self.reads_cache = reads_cache
        self.num_bytes = num_bytes

    @property
    def unexplained(self) -> str | None:
        """The reason why the request's computed tokens cannot be attributed, if there is one."""
        if not self.reads_cache:
            return "prompt_logprobs"  # the engine computes all tokens, cached or not
        return "several_prompts" if len(self.blocks) > 1 else None  # the engine reports one of them

    @property
    def block_size(self) -> int:
        size = self.decision.worker.block_size
        assert size, "blocks have a size"
        return size

    @property
    def space(self) -> CacheNamespace:
        served = self.decision.worker.find(self.decision.model)
        root = root_hash(served.root if served else self.decision.model)
        return CacheNamespace(root, served.adapter if served else None, hash(self.cache_salt or None))


class Attribution:
    """Attribution of a request's tokens, kept until the answer reports how many were computed. `evicted_end`:
    the chosen worker held the tokens up to there, so missing ones were evicted. `others`: blocks of all
    prompts but the last. `family`: the last block before a break, common to prompts that break after it.
    `unexplained`: why the causes do not count."""

    def __init__(self) -> None:
        self.unexplained: str | None = None
        self.parts: Sequence[TokenSegment] = ()
        self.evicted_end = 0
        self.others: Sequence[Sequence[BlockHash]] = ()
        self.holder: Candidate | None = None
        self.lost_by: WorkerId | None = None
        self.prefix_break: PrefixBreak | None = None
        self.family = 0
        self.layers: list[tuple[TokenSpan, LossCause]] = []


class Explainer:
    def __init__(self, decode: Decode, known_break: KnownBreak, *, shows_text: bool) -> None:
        self.history = BlockHistory()
        self.lives = CacheLifetimes()
        self.earlier = EarlierPrompts()
        self.drifting: set[WorkerId] = set()
        self._decode = decode
        self._known_break = known_break
        self._shows_text = shows_text

    def look(self, item: DecidedPrompt, attribution: Attribution) -> Iterator[None]:
        """Fill in the attribution, a portion at a time. A batch of prompts counts as one, concatenated."""
        decision, size = item.decision, item.block_size
        attribution.unexplained = item.unexplained
        attribution.evicted_end = self._own_end(item)
        attribution.others = item.blocks[:-1]
        attribution.holder = holder = best_other(decision)
        at, held_elsewhere = 0, holder.overlap_tokens if holder else 0
        if held_elsewhere:
            attribution.layers.append((TokenSpan(0, held_elsewhere), LossCause.ROUTED_AWAY))
        for tokens, blocks in zip(item.prompt.tokens, item.blocks, strict=True):
            most = max(len(tokens) - 1, 0) // size
            known = self._known(decision, blocks[:most], size, at, attribution)
            if not attribution.others:
                known = max(known, decision.overlap_tokens, held_elsewhere)
            if blocks and len(tokens) - known >= MIN_TOKENS:
                marks: dict[int, int] = {}
                yield from mark(tokens, known, item.space.root, marks)
                self._elsewhere(item, PromptSpan(tokens, blocks, known, most * size, at), marks, attribution)
            at += len(tokens)
        layers = attribution.layers
        if decision.worker.id in self.drifting:
            layers = [(span, LossCause.TOKENIZER_DRIFT) for span, _ in layers]
        attribution.parts = lay_out(at, layers)
        attribution.layers = []

    def evicted_since(self, decision: Decision, blocks: Sequence[BlockHash], attribution: Attribution) -> int:
        """End of the prompt's tokens that were cached when it was sent and evicted before it ran."""
        size, end = decision.worker.block_size or 1, attribution.evicted_end
        sent = blocks[end // size : decision.overlap_tokens // size]
        gone = [n for n, b in enumerate(sent, 1) if state_of(self.history.find(b)) == BlockState.EVICTED]
        return end + size * gone[-1] if gone else end

    def _own_end(self, item: DecidedPrompt) -> int:
        overlap = item.decision.overlap_tokens
        if len(item.blocks) > 1 or overlap < item.block_size:
            return 0
        entry = self.history.find(item.blocks[0][overlap // item.block_size - 1])
        is_own = life_of(entry) == self.lives.of(item.decision.worker.id)
        return overlap if is_own or state_of(entry) == BlockState.EVICTED else 0

    def _known(
        self, decision: Decision, blocks: Sequence[BlockHash], size: int, at: int, attribution: Attribution
    ) -> int:
        """Count a prompt's tokens that were once cached, and attribute the ones lost since."""
        first = min(max(decision.overlap_tokens // size - 1, 0), len(blocks)) if not attribution.others else 0
        last = self.history.depth(blocks, first)
        if last == first:
            return 0
        up = {candidate.id for candidate in decision.candidates}
        cause, end = None, last
        for number in range(last, first, -max((last - first) // MAX_BLOCKS_ASKED, 1)):
            if not (entry := self.history.find(blocks[number - 1])):
                continue  # overwritten: counts like the block after it
            if cause is None:
                attribution.lost_by = self.lives.worker(life_of(entry))
            now = self._cause(entry, up)
            if cause and now is not cause:
                attribution.layers.append((TokenSpan(at + number * size, at + end * size), cause))
                end = number
            cause = now
        assert cause, "the last one is known"
        attribution.layers.append((TokenSpan(at, at + end * size), cause))
        return last * size

    def _cause(self, entry: int, up: Collection[WorkerId]) -> LossCause:
        """Cause of loss of a block that was once cached and is cached nowhere now."""
        life = life_of(entry)
        is_there = not self.lives.is_over(life) and self.lives.worker(life) in up
        if state_of(entry) == BlockState.EVICTED or (state_of(entry) == BlockState.HELD and is_there):
            return LossCause.EVICTED
        return LossCause.WORKER_RESTARTED

    def _elsewhere(
        self, item: DecidedPrompt, it: "PromptSpan", marks: dict[int, int], attribution: Attribution
    ) -> None:
        """Add tokens of known text, in another space or at another position."""
        space, size = item.space, item.block_size
        found = self.earlier.find(it.tokens, it.known, marks)
        self.earlier.add(space, it.tokens[: it.known + MAX_TOKENS], it.known, it.blocks, marks, found)
        if found is None:
            return
        if found.space != space:
            cause = LossCause.OTHER_ADAPTER if found.space.adapter != space.adapter else LossCause.OTHER_SALT
            end = min(found.num_common // size * size, it.most)
            attribution.layers.append((TokenSpan(it.at + it.known, it.at + end), cause))
        broken = [span for span in found.spans if span.start < it.most]
        for span in broken:
            moved = TokenSpan(it.at + span.start, it.at + min(span.end, it.most))
            attribution.layers.append((moved, LossCause.BROKEN_PREFIX))
        if broken:
            attribution.family = it.blocks[it.known // size - 1] if it.known >= size else 0
            attribution.prefix_break = self._known_break(item.decision.model, attribution.family)
            attribution.prefix_break = attribution.prefix_break or self._break(item, it.tokens, found)

    def _break(self, item: DecidedPrompt, tokens: Tokens, found: Similarity) -> PrefixBreak:
        start, num = found.num_common, found.num_differing
        texts: list[str] = []
        if start <= MAX_PLACED_TOKENS:
            end = start + min(num, MAX_SHOWN_TOKENS)
            pieces = tokens[:start], tokens[start:end], tokens[end : end + 4]
            decoded = [self._decode(item.decision.model, piece) for piece in pieces]
            texts = [text for text in decoded if text is not None]
        try:
            messages = item.messages.decode(0) if item.messages else ()
        except InvalidRequest:  # broken JSON within a large one
            messages = ()
        return describe_break(start, num, texts, messages, shows_text=self._shows_text)


class PromptSpan:
    """A prompt of a request, beginning at token `at` of the concatenated prompts. The first `known` tokens
    were once cached; an engine can reuse at most `most` tokens."""

    def __init__(self, tokens: Tokens, blocks: Sequence[BlockHash], known: int, most: int, at: int) -> None:
        self.tokens = tokens
        self.blocks = blocks
        self.known = known
        self.most = most
        self.at = at


def best_other(decision: Decision) -> Candidate | None:
    """The other candidate with the longest cached prefix; among equals, the least busy."""
    others = [c for c in decision.candidates if c.overlap_tokens and c.worker.id != decision.worker.id]
    return max(others, key=lambda c: (c.overlap_tokens, -work_ahead(c)), default=None)


def avoided(decision: Decision, holder: Candidate) -> int:
    """Tokens of work ahead that the chosen worker saves compared with the holder."""
    chosen = next(candidate for candidate in decision.candidates if candidate.id == decision.worker.id)
    work = [each.uncached_tokens + work_ahead(each) for each in (holder, chosen)]
    return round(work[0] - work[1])
