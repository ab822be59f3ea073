"""The `kvgate` command: arguments to Config, Config to a running gateway."""

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from platform import python_implementation, python_version
from typing import Any

import uvloop

from gateway import __version__, is_compiled
from gateway.agent.config import AgentConfig
from gateway.agent.config import load as load_agent
from gateway.commands import key as key_command
from gateway.commands import lora as adapter_command
from gateway.config import Config, load
from gateway.config.live import LIVE
from gateway.config.options import Parser, add_flags, options
from gateway.core.errors import ConfigError
from gateway.observability.log_setup import set_up


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the process's exit code: 0, or 2 for a configuration that cannot be used."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["sim"]:  # the engine has a command line of its own
        return _sim(arguments[1:])
    if arguments[:1] == ["replay"]:  # its options come with the simulated fleet, which others do not load
        return _replay(arguments[1:])
    if arguments[:1] == ["process"]:  # one of several, started by a supervisor with its open socket
        return _process(int(arguments[1]))
    args = _parser().parse_args(arguments)
    try:
        code: int = args.run(args)
    except ConfigError as exc:
        print(f"kvgate: {exc}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="kvgate", description="A KV-aware gateway for LLM inference fleets.")
    parser.add_argument("--version", action="version", version=f"kvgate {__version__} ({_build()})")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the gateway in front of your workers")
    _add_options(serve)
    serve.set_defaults(run=_serve)
    check = commands.add_parser("check", help="validate a configuration and reach every worker once")
    _add_options(check)
    check.set_defaults(run=_check)
    agent = commands.add_parser("agent", help="keep what an engine holds, beside it, for gateways that come")
    add_flags(agent, AgentConfig)
    agent.set_defaults(run=_agent)
    index = commands.add_parser("index", help="look at what gateways share in Redis, or drop it")
    _add_index(index)
    index.set_defaults(run=_index)
    explain = commands.add_parser("explain", help="ask a running gateway what it would do with a request")
    _add_explain(explain)
    explain.set_defaults(run=_explain)
    policy = commands.add_parser(
        "policy", help="list policies, or test that one keeps what every policy must"
    )
    _add_policy(policy)
    policy.set_defaults(run=_policy)
    key = commands.add_parser("key", help="make an API key for --key-file, or import those in use")
    key_command.add(key)
    key.set_defaults(run=key_command.run)
    adapter = commands.add_parser("adapter", help="have a running gateway load an adapter on its workers")
    adapter_command.add(adapter)
    adapter.set_defaults(run=lambda args: run(lambda: adapter_command.run(args)))
    commands.add_parser("replay", help="what policies would have made of recorded traffic")
    commands.add_parser("sim", help="run a simulated vLLM worker")
    demo = commands.add_parser("demo", help="run a small simulated fleet and the gateway before it")
    demo.add_argument("--port", type=int, default=8000, help="port of the gateway (default 8000)")
    demo.set_defaults(run=_demo)
    page = commands.add_parser("options", help="print the options reference as Markdown")
    page.set_defaults(run=_options)
    metrics = commands.add_parser("metrics", help="print the metrics reference as Markdown")
    metrics.set_defaults(run=_metrics)
    return parser


def _add_index(parser: argparse.ArgumentParser) -> None:
    """What to do with it, as `index_command.py` does it."""
    doing = parser.add_subparsers(required=True, metavar="show|top|drop|verify", dest="action")
    show = doing.add_parser("show", help="each worker: blocks, edges, bytes, epoch, and who reads its events")
    top = doing.add_parser("top", help="the largest workers, and the runs of blocks that most workers share")
    top.add_argument("--num", type=int, default=10, metavar="COUNT", help="lines of each (default 10)")
    drop = doing.add_parser("drop", help="drop a worker, or all under the prefix, of another version too")
    drop.add_argument("name", nargs="?", metavar="WORKER", help="as `show` names it")
    drop.add_argument("--all", action="store_true", help="everything; stop the gateways before")
    verify = doing.add_parser("verify", help="count again, and compare with a gateway's own index")
    verify.add_argument("name", nargs="?", metavar="WORKER", help="one only, as `show` names it")
    verify.add_argument("--gateway", metavar="URL", help="a gateway's admin address, http://127.0.0.1:9400")
    for each in (show, top, drop, verify):
        _add_options(each, "redis")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompt-file", required=True, metavar="FILE", help="the body of an OpenAI request, as JSON"
    )
    admin = "http://127.0.0.1:9400"
    parser.add_argument(
        "--gateway", default=admin, metavar="URL", help=f"its admin address (default {admin})"
    )
    parser.add_argument("--path", metavar="PATH", help="where it would be sent, if the body does not say")
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME: VALUE", help="as a client would send it"
    )
    parser.add_argument("--json", action="store_true", help="all that the gateway tells, as JSON")


def _add_policy(parser: argparse.ArgumentParser) -> None:
    """What to do with it, as `policy_command.py` does it."""
    doing = parser.add_subparsers(required=True, metavar="list|test", dest="action")
    listed = doing.add_parser("list", help="policies and parts that can be named")
    test = doing.add_parser(
        "test", help="put a policy, or all that a file has, to every check; 1 if one fails"
    )
    test.add_argument("file", nargs="?", metavar="FILE", help="Python file; without it, --policy is tested")
    for each in (listed, test):
        _add_options(each, "policy")


def _build() -> str:
    form = "compiled" if is_compiled else "interpreted"
    return f"{form}, {python_implementation()} {python_version()}"


def _add_options(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """All, or those that begin so; a file may have the others too."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with any of the options below")
    add_flags(parser, Config, has_variables=True, prefix=prefix)


def _config(args: argparse.Namespace) -> Config:
    config = _load(args)
    set_up(config.log_level, config.log_format)
    return config


def _load(args: argparse.Namespace) -> Config:
    flags = {option.name: getattr(args, option.name, None) for option in options(Config)}
    return load(flags, path=args.config)


def _serve(args: argparse.Namespace) -> int:
    from gateway.commands.serve import serve
    from gateway.config.worker_specs import specs_of

    config = _load(args)
    sink = set_up(config.log_level, config.log_format)
    if not specs_of(config):
        logging.getLogger("kvgate").warning("no --worker given: waiting for POST /admin/workers")
    logging.getLogger("kvgate").info("kvgate %s (%s)", __version__, _build())
    # From a terminal, with nothing to read anew, a hang-up ends us as it ends any program.
    has_files = args.config or config.policy_file or not sys.stderr.isatty()
    return run(lambda: serve(config, sink, partial(_load, args) if has_files else None))


def _process(file: int) -> int:
    from gateway.processes.child import serve_child

    return run(lambda: serve_child(file))


def _check(args: argparse.Namespace) -> int:
    from gateway.commands.check_run import check
    from gateway.redis.embedded import embedded

    config = _load(args)
    # What is logged of each model and worker as it joins is in the findings too.
    set_up("warning" if config.log_level == "info" else config.log_level, config.log_format)
    with embedded(config) as config:
        return run(lambda: check(config))


def _index(args: argparse.Namespace) -> int:
    from gateway.commands.index import run as run_index

    config = _config(args)
    return run(lambda: run_index(args, config))


def _explain(args: argparse.Namespace) -> int:
    from gateway.commands.explain import run as run_explain

    return run(lambda: run_explain(args))


def _policy(args: argparse.Namespace) -> int:
    from gateway.commands.policy import run as run_policy

    return run_policy(args, _config(args))


def _agent(args: argparse.Namespace) -> int:
    config = load_agent({option.name: getattr(args, option.name) for option in options(AgentConfig)})
    set_up(config.log_level, "text")
    from gateway.agent.sidecar import run as run_agent

    return run(lambda: run_agent(config, f"kvgate {__version__}"))


def _sim(arguments: Sequence[str]) -> int:
    from gateway.app import simulate

    return simulate(arguments)


def _replay(arguments: Sequence[str]) -> int:
    from gateway.replay.command import main as replay

    return replay(arguments)


def _demo(args: argparse.Namespace) -> int:
    from gateway.commands.demo import demo

    return run(lambda: demo(args.port))


def _options(args: argparse.Namespace) -> int:
    print(reference_page(), end="")
    return 0


def _metrics(args: argparse.Namespace) -> int:
    from gateway.processes.metric_reference import page

    print(page(), end="")
    return 0


def reference_page() -> str:
    """The options reference, generated from Config."""
    lines = [
        "# Options",
        "",
        "Generated from `gateway/config/` by `make docs`. Flags win over the environment, the",
        "environment over the file given with `--config`, the file over the defaults. Lists are separated",
        "by commas in the environment and repeated as flags. What is live is changed by SIGHUP or",
        "`POST /admin/config/reload` ([operating](../operations/operating.md)); the rest by a restart.",
        "",
        "| flag | file | environment | unit | default | reload | what and why |",
        "|---|---|---|---|---|---|---|",
    ]
    for option in options(Config):
        default = (
            ""
            if option.default in ([], {})
            else str(option.default).lower()
            if option.is_bool
            else option.default
        )
        unit = " or ".join(f"`{choice}`" for choice in option.choices) or option.unit
        names = f"`{option.flag}` | `{option.name}` | `{option.variable}`"
        names = f" | `[{option.name}.NAME]` | " if option.is_table else names
        change = f"live: {LIVE[option.name]}" if option.name in LIVE else "restart"
        lines.append(f"| {names} | {unit} | {default} | {change} | {option.reason} |")
    return "\n".join([*lines, *_agent_page()]) + "\n"


def _agent_page() -> Iterator[str]:
    yield from ("", "## `kvgate agent`", "", "Flags only.", "")
    yield from ("| flag | unit | default | what and why |", "|---|---|---|---|")
    for option in options(AgentConfig):
        unit = " or ".join(f"`{choice}`" for choice in option.choices) or option.unit
        yield f"| `{option.flag}` | {unit} | {option.default} | {option.reason} |"


def run(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
