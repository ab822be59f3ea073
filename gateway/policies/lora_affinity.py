"""Each LoRA adapter has its worker, as long as that one has no more than its share of the load: an engine has
few adapters on its GPU, and to load another one takes longer than most prompts.

The policy of this name weighs (see `policies/framework/composed_policy.py`) to be the adapter's home as much
as to have all of the
prompt, and both together as much as to have nothing to do. Requests of no adapter go by the latter two.
"""

from collections.abc import Sequence

from gateway.core.decision import Candidate, Query
from gateway.policies.base import Pull
from gateway.policies.session_affinity import at_home


class LoraScorer:
    """1 for the adapter's worker, which has no more than its share of the load."""

    pull: Pull = "reuse"

    def score(self, query: Query, candidates: Sequence[Candidate]) -> Sequence[float]:
        return at_home(query.adapter, candidates)
