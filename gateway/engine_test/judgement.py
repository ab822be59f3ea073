"""Verdicts on what was observed. Pure."""

from collections.abc import Sequence

from gateway.core.eligibility import Isolation, SaltProof
from gateway.engine_test.report import EngineFinding, Verdict

RIGHT, ABSENT, WRONG, UNKNOWN = Verdict.RIGHT, Verdict.ABSENT, Verdict.WRONG, Verdict.UNKNOWN

LEAST_EQUAL = 0.99
"""Share of predictions that must equal the engine's own counts."""


def cached_of_repeat(cached: int | None, num_tokens: int, block_size: int | None) -> EngineFinding:
    """`cached` is what a prompt of `num_tokens`, sent for the second time, was reported to find."""
    name = "cached tokens"
    if cached is None:
        return EngineFinding(name, ABSENT, "reports none", "predictions cannot be verified")
    if cached > num_tokens:
        return EngineFinding(
            name, WRONG, f"{cached} of {num_tokens}", "its usage is refused, and not counted"
        )
    if not cached:
        return EngineFinding(name, ABSENT, "a repeated prompt was not cached", "it is routed by load")
    size = block_size or 1
    most = (num_tokens - 1) // size * size
    if block_size is None or cached in (most, num_tokens - 1):
        return EngineFinding(name, RIGHT, f"{cached} of a repeated prompt of {num_tokens}")
    words = f"{cached} of {num_tokens}, where blocks of {size} make {most}"
    return EngineFinding(
        name, UNKNOWN, words, "hits are shorter than predicted, as under speculative decoding"
    )


def predictions(pairs: Sequence[tuple[int, int | None]]) -> EngineFinding:
    """`pairs` are predicted and reported cached tokens of requests that share prefixes."""
    name = "predictions"
    known = [(predicted, cached) for predicted, cached in pairs if cached is not None]
    if not known:
        return EngineFinding(name, UNKNOWN, "no cached tokens are reported")
    num_equal = sum(predicted == cached for predicted, cached in known)
    words = f"{num_equal} of {len(known)} equal the engine's own counts"
    if num_equal >= LEAST_EQUAL * len(known):
        return EngineFinding(name, RIGHT, words)
    worst = max(known, key=lambda pair: abs(pair[0] - pair[1]))
    words += f"; worst: {worst[0]} predicted, {worst[1]} cached"
    return EngineFinding(name, WRONG, words, "requests would go where less is cached than the index says")


def replayed(num_live: int, num_replayed: int, num_common: int) -> EngineFinding:
    """Distinct blocks of an index that followed live, and of one that replayed."""
    name = "replay"
    if num_live == num_replayed == num_common:
        return EngineFinding(name, RIGHT, f"brings the same {num_live} blocks")
    words = f"{num_common} of {num_live} blocks come again, and {num_replayed - num_common} others"
    return EngineFinding(name, WRONG, words, "a gateway that starts late would believe in another cache")


def salts(proof: SaltProof) -> EngineFinding:
    name = "tenants' salts"
    match proof.isolation:
        case Isolation.APART:
            return EngineFinding(name, RIGHT, proof.reason)
        case Isolation.SHARED:
            words = "with tenants' salts on, it gets no tenant's request"
            return EngineFinding(name, WRONG, proof.reason, words)
        case Isolation.UNKNOWN:
            return EngineFinding(
                name, UNKNOWN, proof.reason, "its version decides whether tenants are sent there"
            )


def unknown_model(status: int, words: str) -> EngineFinding:
    """`status` of a request for a model that no worker serves."""
    name = "unknown model"
    if 400 <= status < 500:
        return EngineFinding(name, RIGHT, f"refused with {status}")
    if status == 200:
        consequence = "kvgate sends it no name that it does not list"
        return EngineFinding(name, ABSENT, "answered by another model", consequence)
    return EngineFinding(name, WRONG, words, "a client's typing mistake counts as a failure of the worker")


def adapter(listed: str, cached_of_base: int | None, num_tokens: int) -> EngineFinding:
    """`cached_of_base` are cached tokens of an adapter's request for a prompt that only the base has had."""
    name = f"adapter {listed}"
    if cached_of_base is None:
        return EngineFinding(name, UNKNOWN, "no cached tokens are reported")
    if cached_of_base:
        words = f"{cached_of_base} of {num_tokens} tokens were cached by the base"
        return EngineFinding(
            name, WRONG, words, "the base answers in its place; it is not offered to clients"
        )
    return EngineFinding(name, RIGHT, "has a cache of its own")


def ranks(cached: Sequence[int | None]) -> EngineFinding:
    """`cached` of one prompt sent to rank 0, 0 and 1."""
    name = "ranks"
    if None in cached or len(cached) < 3:
        return EngineFinding(name, UNKNOWN, "no cached tokens are reported")
    _, again, other = cached
    if again and not other:
        return EngineFinding(name, RIGHT, "the named rank computes the request")
    words = f"{again} tokens cached on the same rank, {other} on another"
    return EngineFinding(name, WRONG, words, "requests go to another rank than the one that was chosen")


def several_prompts(status: int, words: str, *, is_alive: bool) -> EngineFinding:
    """A request with a list of two prompts."""
    name = "several prompts"
    if not is_alive:
        return EngineFinding(name, WRONG, "it ends the engine", "any client could stop the worker")
    if status == 200:
        return EngineFinding(name, RIGHT, "two prompts are answered at once")
    verdict = ABSENT if 400 <= status < 500 else WRONG
    return EngineFinding(name, verdict, words, "clients get this answer")


def several_answers(status: int, cached: int | None, num_tokens: int) -> EngineFinding:
    """A prompt that was never cached, with n = 2."""
    name = "several answers"
    if status != 200:
        return EngineFinding(name, ABSENT, f"n = 2 is refused with {status}", "clients get this answer")
    if cached:
        words = f"{cached} of {num_tokens} tokens of a new prompt count as cached with n = 2"
        return EngineFinding(
            name, UNKNOWN, words, "the first answer's prompt feeds the others; such counts say little"
        )
    return EngineFinding(name, RIGHT, "n = 2 is answered")


def leaving(begun: bool, is_idle: bool | None) -> EngineFinding:
    name = "cancelled stream"
    if not begun:
        return EngineFinding(name, UNKNOWN, "no stream began")
    if is_idle is None:
        return EngineFinding(name, UNKNOWN, "its metrics do not say what runs")
    if is_idle:
        return EngineFinding(name, RIGHT, "ends when its client leaves")
    return EngineFinding(
        name, WRONG, "goes on without its client", "the load that kvgate believes is too low"
    )


def unknown_field(status: int) -> EngineFinding:
    name = "unknown field"
    if status == 200:
        return EngineFinding(name, RIGHT, "ignored")
    return EngineFinding(
        name, ABSENT, f"refused with {status}", "clients must know what this engine understands"
    )


def bad_requests(statuses: Sequence[tuple[str, int]]) -> EngineFinding:
    """(what was wrong, status) of requests that no engine can answer."""
    name = "bad requests"
    failed = [f"{what}: {status or 'no answer'}" for what, status in statuses if status >= 500 or not status]
    if failed:
        words = "a client's mistake counts as a failure of the worker"
        return EngineFinding(name, WRONG, "; ".join(failed), words)
    accepted = [what for what, status in statuses if status == 200]
    if accepted:
        return EngineFinding(name, UNKNOWN, f"accepted: {'; '.join(accepted)}")
    return EngineFinding(name, RIGHT, f"{len(statuses)} refused with 4xx")


def prompt_counts(pairs: Sequence[tuple[str, int | None, int | None]]) -> EngineFinding:
    """(shape of a chat, tokens by the worker's `/tokenize`, prompt tokens of its answer)."""
    name = "prompts"
    known = [(shape, asked, counted) for shape, asked, counted in pairs if asked is not None]
    if not known:
        return EngineFinding(
            name, ABSENT, "/tokenize takes no chats", "a local tokenizer must be given (--tokenizer)"
        )
    odd = [
        f"{shape}: {asked} by /tokenize, {counted} counted"
        for shape, asked, counted in known
        if asked != counted
    ]
    if odd:
        return EngineFinding(
            name, WRONG, "; ".join(odd), "its cache is looked up under other tokens for these"
        )
    return EngineFinding(
        name, RIGHT, f"/tokenize and the answer agree on {len(known)} of {len(pairs)} shapes of chats"
    )
