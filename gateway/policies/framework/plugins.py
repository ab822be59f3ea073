"""Policies and their parts from elsewhere: a Python file, or packages that are installed beside the gateway.

The method of a part decides its kind: `choose` a policy, `keep` a filter, `score` a scorer, `pick` a
picker.
A file may have it as functions, which then make one thing with the file's name, or as classes, each with a
`name`. A package names the class, or any function that makes one, in the entry points of `kvgate.policies`.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, NamedTuple

from gateway.core.causes import cause_of
from gateway.core.errors import ConfigError
from gateway.policies.framework.guard import where

GROUP = "kvgate.policies"

Kind = Literal["policy", "filter", "scorer", "picker"]

METHODS: Mapping[str, Kind] = {"choose": "policy", "keep": "filter", "score": "scorer", "pick": "picker"}

DECLARED = ("pull", "reads_prefix")
"""Attributes that describe a part: of its class, or of the file where it is a function."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """Policy, filter, scorer or picker from outside. `make` makes a new one each time; `origin` is its
    source, for people."""

    name: str
    kind: Kind
    origin: str
    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A file that was read once, and what is in it."""

    path: Path
    source: str
    plugins: Mapping[str, Plugin]

    @property
    def policy(self) -> str | None:
        """The policy in it, where there is just one."""
        policies = [plugin.name for plugin in self.plugins.values() if plugin.kind == "policy"]
        return policies[0] if len(policies) == 1 else None


class InstalledPlugins(NamedTuple):
    """The plugins of installed packages by name, and the reason of each that cannot be used."""

    plugins: Mapping[str, Plugin]
    faults: Mapping[str, str]


def kind_of(thing: object) -> Kind | None:
    """Return the kind of a plugin by its methods; None if it has the methods of no kind or of several."""
    kinds = [kind for method, kind in METHODS.items() if callable(getattr(thing, method, None))]
    return kinds[0] if len(kinds) == 1 else None


def read_file(path: Path, source: str | None = None) -> PolicyFile:
    """Load a policy file; `source` is its text where known. Raises ConfigError with the line at fault."""
    try:
        text = path.read_text() if source is None else source
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--policy-file {path}: cannot be read: {cause_of(exc)}") from exc
    module = ModuleType(f"kvgate_policy_file_{path.stem}")
    module.__file__ = str(path)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as exc:
        if before is not None:
            sys.modules[module.__name__] = before
        raise ConfigError(f"--policy-file {path}: {where(exc, str(path))}") from exc
    plugins = {plugin.name: plugin for plugin in _plugins_of(module, path)}
    if not plugins:
        methods = ", ".join(METHODS)
        raise ConfigError(f"--policy-file {path}: has no function or class with one of {methods}")
    return PolicyFile(path, text, plugins)


def _plugins_of(module: ModuleType, path: Path) -> list[Plugin]:
    found = []
    given = {name: getattr(module, name) for name in METHODS if callable(getattr(module, name, None))}
    if len(given) > 1:
        raise ConfigError(f"--policy-file {path}: has {' and '.join(given)}: put each into a class")
    if given:
        declared = {name: getattr(module, name) for name in DECLARED if hasattr(module, name)}
        function = SimpleNamespace(name=path.stem, **{"pull": "spread", **declared}, **given)
        found.append(Plugin(path.stem, METHODS[next(iter(given))], str(path), lambda: function))
    for thing in vars(module).values():
        if isinstance(thing, type) and thing.__module__ == module.__name__ and (kind := kind_of(thing)):
            found.append(Plugin(getattr(thing, "name", thing.__name__), kind, str(path), thing))
    return found


def installed() -> InstalledPlugins:
    """Import the plugins of installed packages: only then is the kind of each known."""
    plugins, faults = dict[str, Plugin](), dict[str, str]()
    for point in entry_points(group=GROUP):
        try:
            plugins[point.name] = _loaded(point)
        except ConfigError as exc:
            faults[point.name] = str(exc)
    return InstalledPlugins(plugins, faults)


def _loaded(point: Any) -> Plugin:
    origin = f"package {point.dist.name}" if point.dist else "a package"
    try:
        make = point.load()
        kind = kind_of(make() if callable(make) else make)
    except (Exception, SystemExit) as exc:
        raise ConfigError(f"policy '{point.name}' of {origin} cannot be loaded: {where(exc)}") from exc
    if kind is None:
        methods = ", ".join(METHODS)
        raise ConfigError(f"policy '{point.name}' of {origin} must have exactly one of {methods}")
    return Plugin(point.name, kind, origin, make if callable(make) else lambda: make)
