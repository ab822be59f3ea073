"""Each LoRA adapter has a preferred worker, as long as that worker has no more than its share of the load: an
engine keeps few adapters on its GPU, and loading another one takes longer than most prompts.

The composition of this name (`policies/framework/composed_policy.py`) weighs the preferred worker as much as
a full prefix overlap, and both together as much as an idle worker. Requests without an adapter are placed by
overlap and load.
"""

from collections.abc import Sequence

from gateway.core.decision import Candidate, Query
from gateway.policies.base import Pull
from gateway.policies.session_affinity import at_home


class LoraScorer:
    """Scores 1 for the adapter's preferred worker, which has no more than its share of the load, else 0."""

    pull: Pull = "reuse"

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        return at_home(query.adapter, candidates)
