"""Watches of the objects that give a pool's requests their priorities and models: objectives and rewrites."""

from collections.abc import Callable, Mapping

from gateway.core.pool_objects import ModelRewrites
from gateway.discovery.kubernetes.api_objects import OBJECTIVES, REWRITES, Codec, T
from gateway.discovery.kubernetes.client import ApiClient
from gateway.discovery.kubernetes.inference_objects import FoundRewrites, model_rewrites, priorities
from gateway.discovery.kubernetes.queries import pool_object_queries
from gateway.discovery.kubernetes.watch import ObjectWatch, WatchTimes
from gateway.discovery.kubernetes.watched_sources import Coalesced, Start


class WatchedPoolObjects:
    """Objectives and rewrites of one pool; `on_change` is called when one of them changed. While the API
    fails, and where a kind is not there, they stay as they are."""

    def __init__(
        self, namespace: str, pool: str, client: ApiClient, on_change: Callable[[], None], times: WatchTimes
    ) -> None:
        self.name = f"{namespace}/{pool}"
        self.priorities: Mapping[str, int] = {}
        self.found = FoundRewrites(ModelRewrites({}))
        self._namespace, self._pool = namespace, pool
        self._client, self._times, self._on_change = client, times, on_change
        self._changes = Coalesced(self._read_objectives), Coalesced(self._read_rewrites)
        objectives, rewrites = self._changes
        self._objectives = self._watch("InferenceObjective", OBJECTIVES, objectives, "priorities")
        self._rewrites = self._watch("InferenceModelRewrite", REWRITES, rewrites, "model names")

    def __repr__(self) -> str:
        return f"WatchedPoolObjects({self.name})"

    def start(self, start: Start) -> None:
        for watch in (self._objectives, self._rewrites):
            start(f"watch {watch.name}", watch.run())

    def stop(self) -> None:
        for changes in self._changes:
            changes.stop()

    @property
    def last_error(self) -> str | None:
        """Why an object could not be read, or counts for less."""
        failed = [f"{w.name}: {w.last_error}" for w in (self._objectives, self._rewrites) if w.last_error]
        return "; ".join(failed) or self.found.refusal or None

    def _watch(self, kind: str, codec: Codec[T], changes: Coalesced, unchanged: str) -> ObjectWatch[T]:
        newer, older = pool_object_queries(self._namespace, f"{kind.lower()}s")
        return ObjectWatch(
            f"{kind}s of {self.name}",
            self._client,
            newer,
            codec,
            on_list=lambda objects: changes.poke(),
            on_change=lambda change: changes.poke(),
            times=self._times,
            older=older,
            unchanged=unchanged,
        )

    def _read_objectives(self) -> None:
        self.priorities = priorities(self._objectives.reflector.objects.values(), self._pool)
        self._on_change()

    def _read_rewrites(self) -> None:
        self.found = model_rewrites(self._rewrites.reflector.objects.values(), self._pool)
        self._on_change()
