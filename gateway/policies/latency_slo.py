"""The TTFT target of a request (its SLO), met for as many requests as possible by each worker's speed model.

    headroom = the request's target (`slo_ttft_s`) - its predicted TTFT at the worker

The choice among workers with headroom is the one with the fewest tokens to compute: reuse is not given up for
a larger margin. Where none has headroom, the lowest predicted TTFT wins. A request that may be shed (priority
below 0) gives way first: it goes to a worker that would miss the target, where there is one.
"""

import random
from collections.abc import Mapping, Sequence

from gateway.core.decision import Candidate, Choice, Query
from gateway.costs.cost_model import first_parts_s, ttft_s
from gateway.costs.token_work import WORTH
from gateway.policies.base import Pull, pick_lowest

SLO_S = 2.0
"""The target of requests that set none: people wait about so long for an answer to begin before they doubt
that it will. Any value serves to compare candidates."""


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
            reason = "negative priority: leaves the faster workers to others"
        else:
            uncached = [candidates[i].uncached_tokens for i in in_time]
            fewest = min(uncached)
            in_time = [i for i, tokens in zip(in_time, uncached, strict=True) if tokens == fewest]
            index = in_time[pick_lowest([ttfts_s[i] for i in in_time], rng)]
            reason = "meets the SLO with the fewest tokens to compute"
        return Choice(index, reason, tuple(ttfts_s), ttfts_s[index])

    def explain(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[Mapping[str, float]]:
        """Return the parts of each predicted TTFT."""
        return [first_parts_s(candidate, WORTH) for candidate in candidates]


class HeadroomScorer:
    """Scores the share of the TTFT target that is left after the predicted TTFT."""

    pull: Pull = "spread"

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        slo_s = SLO_S if query.slo_ttft_s is None else query.slo_ttft_s
        if slo_s <= 0:
            return [0.0] * len(candidates)
        return [max(1.0 - ttft_s(candidate, WORTH) / slo_s, 0.0) for candidate in candidates]
