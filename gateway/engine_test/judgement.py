"""Verdicts on what was observed. Pure."""

from collections.abc import Sequence

from gateway.core.eligibility import Isolation, SaltProof
from gateway.engine_test.prompt_check import PromptCheck
from gateway.engine_test.report import EngineFinding, Verdict

OK, UNSUPPORTED, FAIL, INCONCLUSIVE = Verdict.OK, Verdict.UNSUPPORTED, Verdict.FAIL, Verdict.INCONCLUSIVE

LEAST_EQUAL = 0.99
"""Share of predictions that must equal the engine's own counts."""


def cached_of_repeat(cached: int | None, num_tokens: int, block_size: int | None) -> EngineFinding:
    """Judge `cached`, the tokens reported as cached for a prompt of `num_tokens` that was sent twice."""
    name = "cached tokens"
    if cached is None:
        return EngineFinding(name, UNSUPPORTED, "reports none", "predictions cannot be verified")
    if cached > num_tokens:
        return EngineFinding(name, FAIL, f"{cached} of {num_tokens}", "its usage is refused, and not counted")
    if not cached:
        return EngineFinding(name, UNSUPPORTED, "a repeated prompt was not cached", "it is routed by load")
    size = block_size or 1
    most = (num_tokens - 1) // size * size
    if block_size is None or cached in (most, num_tokens - 1):
        return EngineFinding(name, OK, f"{cached} of a repeated prompt of {num_tokens}")
    words = f"{cached} of {num_tokens}, where blocks of {size} make {most}"
    return EngineFinding(
        name, INCONCLUSIVE, words, "hits are shorter than predicted, as under speculative decoding"
    )


def predictions(pairs: Sequence[tuple[int, int | None]]) -> EngineFinding:
    """Judge pairs of predicted and reported cached tokens, of requests that share prefixes."""
    name = "predictions"
    known = [(predicted, cached) for predicted, cached in pairs if cached is not None]
    if not known:
        return EngineFinding(name, INCONCLUSIVE, "no cached tokens are reported")
    num_equal = sum(predicted == cached for predicted, cached in known)
    words = f"{num_equal} of {len(known)} equal the engine's own counts"
    if num_equal >= LEAST_EQUAL * len(known):
        return EngineFinding(name, OK, words)
    worst = max(known, key=lambda pair: abs(pair[0] - pair[1]))
    words += f"; worst: {worst[0]} predicted, {worst[1]} cached"
    return EngineFinding(name, FAIL, words, "requests would go where less is cached than the index says")


def replayed(num_live: int, num_replayed: int, num_common: int) -> EngineFinding:
    """Judge the replay endpoint: distinct blocks of an index that followed live, and of one that replayed."""
    name = "replay"
    if num_live == num_replayed == num_common:
        return EngineFinding(name, OK, f"brings the same {num_live} blocks")
    words = f"{num_common} of {num_live} blocks come again, and {num_replayed - num_common} others"
    return EngineFinding(name, FAIL, words, "a gateway that starts late would have a wrong view of the cache")


def salts(proof: SaltProof, *, is_declared: bool) -> EngineFinding:
    """Judge the proof that prompts of different cache salts share no cached tokens. `is_declared`: the engine
    is known to have salts in this version, so that kvgate would send it tenants' requests unproven."""
    name = "tenants' salts"
    match proof.isolation:
        case Isolation.APART:
            return EngineFinding(name, OK, proof.reason)
        case Isolation.SHARED:
            words = "with tenants' salts on, it gets no tenant's request"
            return EngineFinding(name, FAIL if is_declared else UNSUPPORTED, proof.reason, words)
        case Isolation.UNKNOWN:
            return EngineFinding(
                name, INCONCLUSIVE, proof.reason, "its version decides whether tenants are sent there"
            )


def unknown_model(status: int, words: str) -> EngineFinding:
    """Judge the status of a request for a model that no worker serves."""
    name = "unknown model"
    if 400 <= status < 500:
        return EngineFinding(name, OK, f"refused with {status}")
    if status == 200:
        consequence = "kvgate sends it no name that it does not list"
        return EngineFinding(name, UNSUPPORTED, "answered by another model", consequence)
    return EngineFinding(name, FAIL, words, "a mistyped model name counts as a failure of the worker")


def adapter(listed: str, cached_of_base: int | None, num_tokens: int) -> EngineFinding:
    """Judge the isolation of an adapter by `cached_of_base`: cached tokens of its request for a prompt that
    only the base has had."""
    name = f"adapter {listed}"
    if cached_of_base is None:
        return EngineFinding(name, INCONCLUSIVE, "no cached tokens are reported")
    if cached_of_base:
        words = f"{cached_of_base} of {num_tokens} tokens were cached by the base"
        return EngineFinding(name, FAIL, words, "the base answers in its place; it is not offered to clients")
    return EngineFinding(name, OK, "has a cache of its own")


def ranks(cached: Sequence[int | None]) -> EngineFinding:
    """Judge the choice of a rank by the cached tokens of one prompt that was sent to rank 0, 0 and 1."""
    name = "ranks"
    if None in cached or len(cached) < 3:
        return EngineFinding(name, INCONCLUSIVE, "no cached tokens are reported")
    _, again, other = cached
    if again and not other:
        return EngineFinding(name, OK, "the named rank computes the request")
    words = f"{again} tokens cached on the same rank, {other} on another"
    return EngineFinding(name, FAIL, words, "requests go to another rank than the one that was chosen")


def several_prompts(status: int, words: str, *, is_alive: bool) -> EngineFinding:
    """Judge the answer to a request with a list of two prompts."""
    name = "several prompts"
    if not is_alive:
        return EngineFinding(name, FAIL, "it ends the engine", "any client could stop the worker")
    if status == 200:
        return EngineFinding(name, OK, "two prompts are answered at once")
    verdict = UNSUPPORTED if 400 <= status < 500 else FAIL
    return EngineFinding(name, verdict, words, "clients get this answer")


def several_answers(status: int, cached: int | None, num_tokens: int, num_answers: int = 2) -> EngineFinding:
    """Judge the answer to a new prompt with n = 2, which has `num_answers`."""
    name = "several answers"
    if status != 200:
        return EngineFinding(name, UNSUPPORTED, f"n = 2 is refused with {status}", "clients get this answer")
    if num_answers != 2:
        words = f"n = 2 gets {num_answers} answer"
        return EngineFinding(name, UNSUPPORTED, words, "clients get this answer")
    if cached:
        words = f"{cached} of {num_tokens} tokens of a new prompt count as cached with n = 2"
        return EngineFinding(
            name, INCONCLUSIVE, words, "the first answer's prompt feeds the others; such counts say little"
        )
    return EngineFinding(name, OK, "n = 2 is answered")


def leaving(begun: bool, is_idle: bool | None) -> EngineFinding:
    """Judge if the engine stops a stream after its client has disconnected."""
    name = "cancelled stream"
    if not begun:
        return EngineFinding(name, INCONCLUSIVE, "no stream began")
    if is_idle is None:
        return EngineFinding(name, INCONCLUSIVE, "its metrics do not say what runs")
    if is_idle:
        return EngineFinding(name, OK, "ends when its client leaves")
    return EngineFinding(name, FAIL, "goes on without its client", "the load that kvgate believes is too low")


def unknown_field(status: int) -> EngineFinding:
    """Judge the status of a request with a field that no engine knows."""
    name = "unknown field"
    if status == 200:
        return EngineFinding(name, OK, "ignored")
    return EngineFinding(
        name, UNSUPPORTED, f"refused with {status}", "clients must know what this engine understands"
    )


def bad_requests(statuses: Sequence[tuple[str, int]]) -> EngineFinding:
    """Judge requests that no engine can answer, each given as (mistake, status)."""
    name = "bad requests"
    failed = [f"{what}: {status or 'no answer'}" for what, status in statuses if status >= 500 or not status]
    if failed:
        words = "a client's mistake counts as a failure of the worker"
        return EngineFinding(name, FAIL, "; ".join(failed), words)
    accepted = [what for what, status in statuses if status == 200]
    if accepted:
        return EngineFinding(name, INCONCLUSIVE, f"accepted: {'; '.join(accepted)}")
    return EngineFinding(name, OK, f"{len(statuses)} refused with 4xx")


def prompt_counts(
    name: str, kind: str, checks: Sequence[PromptCheck], *, needs_ours: bool, publishes: bool
) -> EngineFinding:
    """Judge the prompts of one kind ("texts" or "chats") that the worker answers. `needs_ours`: kvgate asks
    this engine for no tokens, so that it must have a tokenizer of its own. Where the worker `publishes` its
    blocks, lookups by other tokens find nothing; else they only shift the predicted counts."""
    known = [check for check in checks if check.is_compared]
    with_ours = [check for check in known if check.ours]
    if not checks:
        return EngineFinding(name, UNSUPPORTED, f"{kind} are not answered", "clients get this answer")
    odd = [words for check in known if (words := check.difference())]
    if odd and publishes:
        words = "its cache is looked up under other tokens for these"
        return EngineFinding(name, FAIL, "; ".join(odd), words)
    if odd:
        words = "predicted cached tokens are off by as many for these"
        return EngineFinding(name, UNSUPPORTED, "; ".join(odd), words)
    if not known or (needs_ours and not with_ours):
        agree = f"its own tokenizer and its answers agree on {len(known)} {kind}" if known else ""
        words = agree or f"its own tokenizer takes no {kind}"
        return EngineFinding(name, UNSUPPORTED, words, "a local tokenizer must be given (--tokenizer)")
    who = "kvgate" if with_ours else "its own tokenizer"
    some = len(with_ours or known)
    return EngineFinding(name, OK, f"{who} and the answers agree on {some} of {len(checks)} {kind}")
