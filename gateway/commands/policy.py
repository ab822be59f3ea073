"""Command `kvgate policy`: lists the policies, and checks policies by the contract suite."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.config import Config
from gateway.policies.framework import contract
from gateway.policies.framework.plugins import Kind, read_file
from gateway.policies.framework.registry import AUTO
from gateway.routing.active_policy import library_of
from gateway.runtime.terminal import print_lines

KINDS: tuple[Kind, ...] = ("policy", "filter", "scorer", "picker")


def run(args: argparse.Namespace, config: Config) -> int:
    """Run the command. Returns the exit code. Raises ConfigError."""
    if args.action == "list":
        print_lines(*_listed(config))
        return 0
    num_checks = num_kept = 0
    for (kind, name), make in _tested(args.file, config).items():
        print_lines(f"{kind} {name}")
        before = None
        for result in contract.run(kind, make, config.policy.budget_ms / 1000):
            num_checks += 1
            num_kept += result.fault is None
            fault = "the same" if result.fault == before else result.fault
            print_lines(f"  FAIL  {result.check}: {fault}" if result.fault else f"  ok    {result.check}")
            before = result.fault
    print_lines(f"{num_kept} of {num_checks} checks passed")
    return 0 if num_kept == num_checks else 1


def _listed(config: Config) -> Iterator[str]:
    path = config.policy.file
    library = library_of(config, read_file(Path(path)) if path else None)
    for kind in KINDS:
        yield f"{kind}: {', '.join(library.names(kind))}"


def _tested(path: str | None, config: Config) -> Mapping[tuple[Kind, str], Callable[[], Any]]:
    """Policies to check: all of a file, or those of --policy."""
    path = path or config.policy.file
    file = read_file(Path(path)) if path else None
    library = library_of(config, file)
    if file is None or config.policy.name != AUTO:
        name = library.resolved(config.policy.name)
        return {("policy", name): lambda: library.bare(name)}
    return {(plugin.kind, plugin.name): plugin.make for plugin in file.plugins.values()}
