"""Disaggregation: plan a prompt's prefill on the decode worker or on another one, by predicted seconds.

    direct   predicted TTFT and cost to others at the decode worker (`costs/cost_model.py`), including running
             answers that wait for the steps that compute the prompt
    split    predicted TTFT and cost at the prefill worker
             + the transfer of the blocks that the decode worker lacks, dearer with distance
             + the decode worker's queue, and the eviction by the prompt's second copy in its cache

A cold, long prompt goes to a prefill worker. A prompt that is short, or mostly cached on a decode worker (the
next turn of a conversation that was decoded there), is cheaper without a transfer, which has its latency;
prefill workers have queues of their own.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.core.decision import Candidate, Query
from gateway.core.errors import ConfigError
from gateway.core.pd_pairs import nearness
from gateway.core.worker import FULL_KV, Role, WorkerId
from gateway.costs.cost_model import TokenPrice, mean_token_s, others_s, running_s, ttft_s
from gateway.costs.token_work import WORTH
from gateway.costs.transfer_speed import TransferSpeed
from gateway.policies.base import pick_lowest

Mode = Literal["auto", "always", "never"]

MODES: Final[Mapping[str, Mode]] = {"auto": "auto", "always": "always", "never": "never"}

COPY: Final = 1.0
"""The cost of a second copy of a token in a decode worker's cache, where it evicts another one, relative to
that of computing it."""
FULL_COST: Final = 10
"""Factor on the cost of a decode worker without room for the prompt's blocks."""

Partners = Sequence[Sequence[int]]
"""For each decode candidate the positions of the prefill candidates that fit it; those with the same partners
have one object."""


@dataclass(frozen=True, slots=True)
class PairChoice:
    """Positions among the candidates; `prefill` is None where the decode worker also computes the prompt.
    `direct_s` and `split_s` are the predicted TTFT of the best of each kind, None where there is none."""

    decode: int
    prefill: int | None
    reason: str
    direct_s: float | None = None
    split_s: float | None = None


class _Pair:
    """A decode worker with its prefill worker; `cost_s` includes the delay of other requests. No dataclass:
    each request makes one per decode worker, and compiled, this costs a tenth of a dataclass."""

    __slots__ = ("decode", "prefill", "ttft_s", "cost_s")

    def __init__(self, decode: int, prefill: int, ttft_s: float, cost_s: float) -> None:
        self.decode = decode
        self.prefill = prefill
        self.ttft_s = ttft_s
        self.cost_s = cost_s


class DisaggregationPolicy:
    """The policy of prefill and decode pairs; `modes` by model, "" for all others."""

    def __init__(self, transfer: TransferSpeed, modes: Mapping[str, Mode] | None = None) -> None:
        self.modes: Mapping[str, Mode] = {"": "auto", **(modes or {})}
        self.transfer = transfer
        self.worth = WORTH
        self.price = TokenPrice()
        self._banned: dict[tuple[WorkerId, WorkerId], str] = {}

    def ban(self, prefill: WorkerId, decode: WorkerId, why: str) -> bool:
        """Ban a pair, whatever its workers report; False if it was banned before."""
        is_new = (prefill, decode) not in self._banned
        self._banned[prefill, decode] = why
        return is_new

    def banned_with(self, worker: WorkerId) -> dict[WorkerId, str]:
        """Return the workers that a worker is banned from pairing with, and the reasons."""
        pairs = [(prefill, decode, why) for (prefill, decode), why in self._banned.items()]
        return {one if other == worker else other: why for one, other, why in pairs if worker in (one, other)}

    def acquit(self, prefill: WorkerId, decode: WorkerId) -> bool:
        """Lift the ban of a pair; False if there was none."""
        return self._banned.pop((prefill, decode), None) is not None

    def allow(self, worker: WorkerId) -> None:
        """Lift all bans of a worker that has restarted."""
        self._banned = {pair: why for pair, why in self._banned.items() if worker not in pair}

    def __repr__(self) -> str:
        return f"DisaggregationPolicy({self.modes}, {self.transfer})"

    def choose(
        self,
        query: Query,
        decodes: Sequence[Candidate],
        direct: int,
        prefills: Sequence[Candidate],
        partners: Partners,
        rng: random.Random,
        *,
        is_real: bool = True,
    ) -> PairChoice:
        """Plan one request: `direct` is the policy's choice among `decodes` without disaggregation. A plan
        that is not real (`is_real`) leaves no trace."""
        alone, mode = decodes[direct], self.modes.get(query.model, self.modes[""])
        is_bound = alone.worker.is_bound
        direct_s = None if is_bound else ttft_s(alone, self.worth)
        if mode == "never" and not is_bound:
            return PairChoice(direct, None, "disaggregation is off", direct_s)
        if not prefills:
            return PairChoice(direct, None, "no compatible prefill worker", direct_s)
        here, there = query.model, f"{query.model} (prefill)"
        if is_real:
            self.price.see(here, decodes)
            self.price.see(there, prefills)
        pair = self._best_pair(
            query.num_tokens, decodes, prefills, partners, self._prefill_price_s(there, prefills), rng
        )
        if pair is None:
            return PairChoice(direct, None, "no compatible prefill worker", direct_s)
        if direct_s is None:
            return PairChoice(pair.decode, pair.prefill, "no worker serves both phases", None, pair.ttft_s)
        direct_cost_s = direct_s + others_s(
            alone, self.price.per_token_s(here, decodes) + COPY * mean_token_s(decodes)
        )
        if mode == "auto" and direct_cost_s <= pair.cost_s:
            return PairChoice(direct, None, _why_direct(alone), direct_s, pair.ttft_s)
        if prefills[pair.prefill].id == decodes[pair.decode].id:
            return PairChoice(pair.decode, None, "its own prefill worker", direct_s, pair.ttft_s)
        reason = "always split" if mode == "always" else "lower predicted TTFT with a transfer"
        return PairChoice(pair.decode, pair.prefill, reason, direct_s, pair.ttft_s)

    def _prefill_price_s(self, name: str, prefills: Sequence[Candidate]) -> float:
        """Return the price of a token computed at a prefill worker: where none decodes, a copy evicts nothing
        that decoding needs."""
        price = self.price.per_token_s(name, prefills)
        if prefills[0].worker.role is Role.PREFILL:
            return price
        return price + COPY * mean_token_s(prefills)

    def _best_pair(
        self,
        num_tokens: int,
        decodes: Sequence[Candidate],
        prefills: Sequence[Candidate],
        partners: Partners,
        price: float,
        rng: random.Random,
    ) -> _Pair | None:
        """Return the cheapest pair over all decode workers; those in one place with the same partners are
        weighed once. `price` is that of a token computed at a prefill worker."""
        prefill_s = [ttft_s(prefill, self.worth) for prefill in prefills]
        cost_s = [own + others_s(prefill, price) for own, prefill in zip(prefill_s, prefills, strict=True)]
        copy_s = COPY * mean_token_s(decodes)
        found: dict[tuple[int, str], Mapping[int, Sequence[int]]] = {}
        pairs: list[_Pair] = []
        costs: list[float] = []
        for i, decode in enumerate(decodes):
            mine, place = partners[i], decode.worker.topology
            if self._banned:
                mine = [j for j in mine if (prefills[j].id, decode.id) not in self._banned]
            if not mine:
                continue
            by_distance = None if self._banned else found.get((id(mine), place))
            if by_distance is None:
                by_distance = found[id(mine), place] = _by_distance(place, prefills, mine)
            num_moved = max(num_tokens - decode.overlap_tokens, 0)
            move_s, decode_s = self.transfer.seconds(num_moved), running_s(decode) + num_moved * copy_s
            ahead_s = decode.booked_tokens * decode.speed.token_s
            for distance, near in by_distance.items():
                best = near[pick_lowest([cost_s[j] for j in near], rng)]
                behind_s = (
                    move_s * (1 + distance) + max(ahead_s - prefill_s[best], 0.0) + decode.speed.start_s
                )
                pairs.append(_Pair(i, best, prefill_s[best] + behind_s, cost_s[best] + behind_s + decode_s))
                costs.append(pairs[-1].cost_s if decode.kv_usage < FULL_KV else pairs[-1].cost_s * FULL_COST)
        return pairs[pick_lowest(costs, rng)] if pairs else None


def _by_distance(
    place: str, prefills: Sequence[Candidate], partners: Sequence[int]
) -> Mapping[int, Sequence[int]]:
    """Return the partners by distance: the number of parts of the decode worker's place that they lack."""
    if not place:
        return {0: partners}
    depth = place.count("/") + 1
    found: dict[int, list[int]] = {}
    for j in partners:
        found.setdefault(depth - nearness(place, prefills[j].worker.topology), []).append(j)
    return found


def _why_direct(chosen: Candidate) -> str:
    if chosen.overlap_tokens > chosen.uncached_tokens:
        return "prefix mostly cached on the decode worker"
    return "lower predicted TTFT without a transfer"


def modes_of(specs: Sequence[str]) -> dict[str, Mode]:
    """Return modes by model, from specs of the form "MODE" or "MODEL=MODE". Raises ConfigError."""
    modes: dict[str, Mode] = {}
    for spec in specs:
        model, _, name = spec.rpartition("=")
        if name not in MODES:
            raise ConfigError(f"disaggregation: '{spec}' is not one of {', '.join(MODES)}, nor MODEL=MODE")
        modes[model] = MODES[name]
    return modes
