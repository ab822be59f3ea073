"""The request's first token in time, and as many others' as can be: by what each worker's pace predicts.

    headroom = what the request wants (`slo_ttft_s`) - predicted time to its first token there

Of the workers with headroom the one that has the least to compute for it, so that reuse is not given up for a
margin that nobody asked for. Where none has any, the soonest. A request that may be shed (priority below 0)
gives way first: where some worker is late already, it goes there and leaves those in time to others.
"""

import random
from collections.abc import Mapping, Sequence

from gateway.core.decision import Candidate, Choice, Query
from gateway.policies.base import Pull, pick_lowest
from gateway.policies.cost_model import first_parts_s, ttft_s
from gateway.policies.prefix_overlap import WORTH

SLO_S = 2.0
"""For requests that say nothing: what people wait for an answer's beginning without asking themselves whether
it hangs. To compare candidates, any would do."""


class LatencySlo:
    name = "latency_slo"

    def choose(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Choice:
        slo_s = SLO_S if query.slo_ttft_s is None else query.slo_ttft_s
        ttfts_s = [ttft_s(candidate, WORTH) for candidate in candidates]
        late = [i for i, seconds in enumerate(ttfts_s) if seconds > slo_s]
        in_time = [i for i, seconds in enumerate(ttfts_s) if seconds <= slo_s]
        if not in_time:
            index, reason = pick_lowest(ttfts_s, rng), "no worker meets the SLO: lowest predicted TTFT"
        elif late and query.priority < 0:
            index = late[pick_lowest([ttfts_s[i] for i in late], rng)]
            reason = "may be shed: gives way to others"
        else:
            uncached = [candidates[i].uncached_tokens for i in in_time]
            fewest = min(uncached)
            in_time = [i for i, tokens in zip(in_time, uncached, strict=True) if tokens == fewest]
            index = in_time[pick_lowest([ttfts_s[i] for i in in_time], rng)]
            reason = "in time, and the least to compute"
        return Choice(index, reason, tuple(ttfts_s), ttfts_s[index])

    def explain(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        """What the prediction is made of."""
        return [first_parts_s(candidate, WORTH) for candidate in candidates]


class HeadroomScorer:
    """The part of what the request wants that would be left when its first token comes."""

    pull: Pull = "spread"

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        slo_s = SLO_S if query.slo_ttft_s is None else query.slo_ttft_s
        if slo_s <= 0:
            return [0.0] * len(candidates)
        return [max(1.0 - ttft_s(candidate, WORTH) / slo_s, 0.0) for candidate in candidates]
