"""Command `kvgate policy`: lists the policies, and checks policies by the contract suite."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.config import Config
from gateway.policies.framework import contract
from gateway.policies.framework.plugins import Kind, PolicyFile, read_file
from gateway.policies.framework.registry import AUTO, PolicyRegistry
from gateway.routing.active_policy import library_of
from gateway.runtime.terminal import print_lines

KINDS: tuple[Kind, ...] = ("policy", "filter", "scorer", "picker")


def run(args: argparse.Namespace, config: Config) -> int:
    """Run the command. Returns the exit code. Raises ConfigError."""
    path = args.what if args.action == "test" and _is_path(args.what or "") else config.policy.file
    file = read_file(Path(path)) if path else None
    library = library_of(config, file)
    if args.action == "list":
        print_lines(*_listed(library))
        return 0
    name = None if path == args.what else args.what
    return _test(_tested(name, config, library, file), config.policy.budget_ms / 1000)


def _is_path(text: str) -> bool:
    """True for a file, there or not: a policy's name has neither folders nor an ending."""
    return "/" in text or text.endswith(".py")


def _test(tested: Mapping[tuple[Kind, str], Callable[[], Any]], budget_s: float) -> int:
    """Run every check on each. Returns the exit code."""
    num_checks = num_kept = 0
    for (kind, name), make in tested.items():
        print_lines(f"{kind} {name}")
        before = None
        for result in contract.run(kind, make, budget_s):
            num_checks += 1
            num_kept += result.fault is None
            fault = "the same" if result.fault == before else result.fault
            print_lines(f"  FAIL  {result.check}: {fault}" if result.fault else f"  ok    {result.check}")
            before = result.fault
    print_lines(f"{num_kept} of {num_checks} checks passed")
    return 0 if num_kept == num_checks else 1


def _listed(library: PolicyRegistry) -> Iterator[str]:
    for kind in KINDS:
        yield f"{kind}: {', '.join(library.names(kind))}"
    yield from (f"left out: {fault}" for fault in library.faults_of_packages)


def _tested(
    name: str | None, config: Config, library: PolicyRegistry, file: PolicyFile | None
) -> Mapping[tuple[Kind, str], Callable[[], Any]]:
    """Everything with the name; without one all of a file, or --policy where it is given or none is there."""
    if name:
        return {(kind, name): make for kind, make in library.making(name).items()}
    if file is None or config.policy.name != AUTO:
        name = library.resolved(config.policy.name)
        return {("policy", name): lambda: library.bare(name)}
    return {(plugin.kind, plugin.name): plugin.make for plugin in file.plugins.values()}
