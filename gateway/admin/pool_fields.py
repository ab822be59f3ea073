"""Fields of /admin/pool-objects, as those of `admin/fields.py`."""

from typing import Annotated as A

from gateway.admin.fields import FIRST, View


class WatchedPoolView(View):
    pool: A[str, "InferencePool, as NAMESPACE/NAME"]
    objectives: A[dict[str, int], FIRST, "priorities by the name of the InferenceObjective, higher first"]
    rewrites: A[dict[str, dict[str, int]], FIRST, "weights of the models that answer for a model's name"]
    others: A[dict[str, int] | None, FIRST, "weights of the models that answer for all other names"]
    last_error: A[str | None, FIRST, "why the API's last answer, or an object, could not be used"]


class PoolObjectsView(View):
    objectives: A[dict[str, int], FIRST, "priorities in use, with those of `epp.objectives`"]
    pools: A[list[WatchedPoolView], FIRST, "pools of `[kubernetes] pool_objects`"]
