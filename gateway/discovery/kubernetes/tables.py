"""Table of the endpoints of one source's objects. Pure: each object is read once, when it changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic

from gateway.discovery.kubernetes.api_objects import T
from gateway.discovery.kubernetes.endpoints import NOTHING, Found, KubernetesEndpoint, merged
from gateway.discovery.kubernetes.reflector import ObjectChange


@dataclass(slots=True)
class EndpointTable(Generic[T]):
    """Endpoints by object; `read` yields those of one."""

    read: Callable[[T], Found]
    _found: dict[str, Found] = field(default_factory=dict)

    def replace(self, objects: Mapping[str, T]) -> bool:
        """Read all objects. Returns True if an endpoint changed."""
        found = {name: self.read(each) for name, each in objects.items()}
        before, self._found = self._found, found
        return before != found

    def change(self, change: ObjectChange[T]) -> bool:
        """Read one object. Returns True if an endpoint changed: most changes of a pod are of none."""
        before = self._found.get(change.name, NOTHING)
        if change.object is None:
            self._found.pop(change.name, None)
            return before is not NOTHING
        now = self._found[change.name] = self.read(change.object)
        return before != now

    @property
    def endpoints(self) -> dict[str, KubernetesEndpoint]:
        return merged(self._found.values())

    @property
    def refusal(self) -> str:
        """Why an object has no endpoint, or fewer; empty where all have theirs."""
        return next((found.refusal for found in self._found.values() if found.refusal), "")
