"""Groups of workers: one for each model and role.

A group's model is the first name of its workers that is no adapter's. Requests for their other names, for
adapters and for aliases are the group's, also when its workers are gone. Names that no worker ever served
make no group, so that clients cannot fill the memory; an autoscaler that asks for a name makes one, and so
does the configuration.
"""

from collections.abc import Mapping
from typing import NamedTuple

from gateway.core.worker import Role, Worker

MAX_GROUPS = 256
MAX_NAMES = 4096


class GroupKey(NamedTuple):
    model: str
    role: Role


def key_of(worker: Worker) -> GroupKey | None:
    """The group of a worker; None where it serves nothing."""
    names = [served.name for served in worker.served if served.adapter is None]
    return GroupKey(names[0], worker.role) if names else None


class ModelNames:
    """The model of a group by each name that requests may use."""

    def __init__(self) -> None:
        self._models: dict[str, str] = {}
        self._asked: set[str] = set()
        self.configured: frozenset[str] = frozenset()
        """Names of models that may have no workers."""

    def __repr__(self) -> str:
        return f"ModelNames({len(self._models)} served, {len(self._asked)} asked)"

    def learn(self, worker: Worker, key: GroupKey) -> None:
        for served in worker.served:
            if served.name in self._models or len(self._models) < MAX_NAMES:
                self._models[served.name] = key.model

    def ask(self, name: str) -> None:
        """Keep a name that an autoscaler asks for, where there is room."""
        if len(self._asked) < MAX_NAMES:
            self._asked.add(name)

    def find(self, name: str, aliases: Mapping[str, str]) -> str | None:
        """The model of a name; None for names that no worker served, no autoscaler asked for, and the
        configuration does not have."""
        meant = aliases.get(name, name)
        if (model := self._models.get(name) or self._models.get(meant)) is not None:
            return model
        return next((each for each in (name, meant) if each in self._asked or each in self.configured), None)
