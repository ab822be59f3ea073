"""The `kvgate` command: arguments to Config, Config to a running gateway."""

import argparse
import asyncio
import errno
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Coroutine, Sequence
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
from gateway.commands import status as status_command
from gateway.config import Config, by_key, checked, old_config_name, read, replaced
from gateway.config.flags import Parser, ShortHelp, add_flags, positive_seconds
from gateway.config.options import options
from gateway.config.reading import ConfigErrors, ConfigReader
from gateway.config.reference import reference_page
from gateway.core.errors import ConfigError
from gateway.observability.log_setup import set_up
from gateway.runtime.runnables import StartFailed
from gateway.runtime.terminal import print_lines

FIRST_STEPS = f"""\
kvgate {__version__}: a KV-aware gateway in front of LLM inference fleets

  kvgate demo                                  try it: a small simulated fleet and its gateway
  kvgate serve --worker http://10.0.0.1:8000   run the gateway in front of your workers (one --worker each)
  kvgate check --worker http://10.0.0.1:8000   validate a configuration and reach every worker once
  kvgate explain --prompt-file body.json       show a running gateway's decision for a request
  kvgate key new --tenant NAME                 make an API key

`kvgate --help` lists all commands, `kvgate COMMAND --help` the options of one."""
"""The page of `kvgate` without a command."""
FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""Errors of an output that has no room left."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the process's exit code: 0, 1 for an output without room or a failed start, or 2 for a
    configuration that cannot be used; as of a process that a signal ended if the reader of the output went
    away, or at an interrupt."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _main(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as exc:
        if exc.errno not in FULL:
            raise
        _discard_output()
        print_lines(f"kvgate: the output cannot be written: {exc.strerror}", to=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _discard_output() -> None:
    """Let the interpreter flush what is left, at its end, without a reader."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _main(arguments: list[str]) -> int:
    if not arguments:
        print(FIRST_STEPS)
        return 0 if sys.stdout.isatty() else 2
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
        for mistake in exc.mistakes if isinstance(exc, ConfigErrors) else [str(exc)]:
            print_lines(f"kvgate: {mistake}", to=sys.stderr)
        return 2
    except StartFailed as exc:
        if not isinstance(exc.__cause__, OSError):  # a mistake of the program: show where
            traceback.print_exception(exc.__cause__)
        print_lines(f"kvgate: {exc}", to=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="kvgate", description="A KV-aware gateway for LLM inference fleets.")
    parser.add_argument("--version", action="version", version=f"kvgate {__version__} ({_build()})")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = _with_all_options(commands, "serve", "run the gateway in front of your workers")
    serve.set_defaults(run=_serve)
    picker = _with_all_options(commands, "epp", "run the endpoint picker for Envoy, without the proxy")
    picker.set_defaults(run=_epp)
    _add_check(commands)
    _add_config(commands)
    agent = commands.add_parser("agent", help="run beside an engine, and serve its cache's content")
    add_flags(agent, AgentConfig)
    agent.set_defaults(run=_agent)
    index = commands.add_parser("index", help="inspect, verify or drop the index in Redis")
    _add_index(index)
    index.set_defaults(run=_index)
    explain = commands.add_parser("explain", help="show a running gateway's decision for a request")
    _add_explain(explain)
    explain.set_defaults(run=_explain)
    policy = commands.add_parser("policy", help="list policies, or check a policy against the contract")
    _add_policy(policy)
    policy.set_defaults(run=_policy)
    _add_engine(commands.add_parser("engine", help="test whether an engine does what kvgate assumes"))
    key = commands.add_parser("key", help="make, import, list or revoke API keys of --key-file")
    key_command.add(key)
    key.set_defaults(run=key_command.run)
    adapter = commands.add_parser("adapter", help="load, unload or list LoRA adapters on the workers")
    adapter_command.add(adapter)
    adapter.set_defaults(run=lambda args: run(lambda: adapter_command.run(args)))
    _add_views(commands)
    commands.add_parser("replay", help="play recorded traffic with other policies or fleets, in virtual time")
    commands.add_parser("sim", help="run a simulated vLLM worker")
    demo = commands.add_parser(
        "demo", help="show what cache-aware routing does, on simulated fleets under traffic"
    )
    _add_demo(demo)
    demo.set_defaults(run=_demo)
    _add_pages(commands)
    return parser


def _add_pages(commands: Any) -> None:
    page = commands.add_parser("options", help="print the options reference as Markdown")
    page.set_defaults(run=_options)
    metrics = commands.add_parser("metrics", help="print the metrics reference as Markdown")
    metrics.set_defaults(run=_metrics)
    completion = commands.add_parser("completion", help="print a script for the completion of a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="bash|zsh|fish")
    completion.set_defaults(run=_completion)


def _add_index(parser: Parser) -> None:
    """Actions of `kvgate index` (`gateway/commands/index.py`)."""
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
        _add_options(each, ["redis"])


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
    parser.add_argument("--json", action="store_true", help="the gateway's whole answer, as JSON")


def _add_policy(parser: Parser) -> None:
    """Actions of `kvgate policy` (`gateway/commands/policy.py`)."""
    doing = parser.add_subparsers(required=True, metavar="list|test", dest="action")
    listed = doing.add_parser("list", help="policies and parts that can be named")
    test = doing.add_parser(
        "test", help="run every check on a policy, or on all of a file; exit status 1 if one fails"
    )
    words = "everything in a Python file, or all that has a name (`list` shows them); else --policy is tested"
    test.add_argument("what", nargs="?", metavar="FILE|NAME", help=words)
    for each in (listed, test):
        _add_options(each, ["policy"])


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=8000, help="port of the gateway (default 8000)")
    words = "no traffic and no twin fleet: one line per request of yours instead"
    parser.add_argument("--quiet-traffic", action="store_true", help=words)


def _add_engine(parser: Parser) -> None:
    """Actions of `kvgate engine` (`gateway/commands/engine.py`)."""
    doing = parser.add_subparsers(required=True, metavar="test", dest="action")
    words = (
        "send a worker some 150 requests, and compare what it does with what kvgate assumes; exit "
        "status 1 if a finding is FAIL"
    )
    test = doing.add_parser("test", help=words)
    test.add_argument("url", metavar="URL", help="base URL of the worker, http://10.0.0.1:8000")
    test.add_argument("--json", action="store_true", help="the report as JSON")
    test.add_argument(
        "--timeout-s",
        type=positive_seconds,
        default=120.0,
        metavar="DURATION",
        help="time for each question, with all of its answers (120)",
    )
    _add_options(test, ["fleet", "worker", "events", "lifecycle", "tokenizer"])
    parser.set_defaults(run=_engine)


def _add_check(commands: Any) -> None:
    check = _with_all_options(commands, "check", "validate a configuration and reach every worker once")
    check.keeps_mistakes = True
    check.add_argument("--dry-run", action="store_true", help="send no completions to the workers")
    check.set_defaults(run=_check)


def _add_config(commands: Any) -> None:
    """Actions of `kvgate config` (`gateway/commands/config.py`)."""
    parser = commands.add_parser("config", help="print the options in effect, or validate them")
    doing = parser.add_subparsers(required=True, metavar="print|test", dest="action")
    words = "print the options in effect and where each was given, without secrets"
    shown = _with_all_options(doing, "print", words)
    shown.add_argument("--format", choices=("toml", "json"), default="toml", help="of the output (toml)")
    shown.add_argument("--given", action="store_true", help="leave out the options that have their default")
    shown.set_defaults(run=_config_print)
    words = "name every mistake of a configuration, without reaching a worker; exit status 2 if there is one"
    tested = _with_all_options(doing, "test", words)
    tested.set_defaults(run=_config_test)
    shown.keeps_mistakes = tested.keeps_mistakes = True


def _add_views(commands: Any) -> None:
    words = "show a running gateway's workers; exit status 1 if one is not active"
    status = commands.add_parser("status", help=words)
    status_command.add_status(status, watches=False)
    top = commands.add_parser("top", help="show a running gateway's workers, again every second")
    status_command.add_status(top, watches=True)
    why = commands.add_parser("why", help="show a decision of a running gateway, and what came of it")
    status_command.add_why(why)
    for view in (status, top):
        view.set_defaults(run=lambda args: run(lambda: status_command.run_status(args)))
    why.set_defaults(run=lambda args: run(lambda: status_command.run_why(args)))


def _build() -> str:
    form = "compiled" if is_compiled else "interpreted"
    return f"{form}, {python_implementation()} {python_version()}"


def _with_all_options(commands: Any, name: str, words: str) -> Parser:
    parser: Parser = commands.add_parser(
        name, help=words, description=f"{words[0].upper()}{words[1:]}.", add_help=False
    )
    parser.usage = f"{parser.prog} [OPTION ...]"
    parser.add_argument("-h", "--help", action=ShortHelp, struct=Config)
    parser.add_argument("--help-all", action="help", help="every option, in groups")
    _add_options(parser)
    return parser


def _add_options(parser: Parser, tables: Collection[str] = ()) -> None:
    """Add the options of some tables, or all; a file may have the others too."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with any of the options")
    parser.old_name = old_config_name
    add_flags(parser, Config, has_variables=True, tables=tables)


def _config(args: argparse.Namespace) -> Config:
    config = _load(args)
    set_up(config.log.level, config.log.format)
    return config


def _load(args: argparse.Namespace) -> Config:
    return checked(_read(args))


def _read(args: argparse.Namespace) -> ConfigReader[Config]:
    reader = read({key: getattr(args, key, None) for key in by_key()}, path=args.config)
    reader.mistakes[:0] = getattr(args, "mistakes", [])
    return reader


def _serve(args: argparse.Namespace, load: Callable[[argparse.Namespace], Config] = _load) -> int:
    from gateway.commands.serve import serve
    from gateway.config.worker_specs import specs_of

    config = load(args)
    sink = set_up(config.log.level, config.log.format)
    if not specs_of(config):
        logging.getLogger("kvgate").warning("no --worker given: waiting for POST /admin/workers")
    logging.getLogger("kvgate").info("kvgate %s (%s)", __version__, _build())
    # From a terminal, without anything to reload, a hang-up ends the gateway as it ends any program.
    has_files = args.config or config.policy.file or not sys.stderr.isatty()
    return run(lambda: serve(config, sink, partial(load, args) if has_files else None))


def _epp(args: argparse.Namespace) -> int:
    """`kvgate serve` without the port for clients, on the ports that gateways expect."""
    return _serve(args, _load_epp)


def _load_epp(args: argparse.Namespace) -> Config:
    config = _load(args)
    ports = {"epp_port": config.epp.port or 9002, "epp_health_port": config.epp.health_port or 9003}
    return replaced(config, epp_only=True, **ports)


def _process(file: int) -> int:
    from gateway.processes.child import serve_child

    return run(lambda: serve_child(file))


def _check(args: argparse.Namespace) -> int:
    from gateway.commands.check_run import check
    from gateway.redis.embedded import embedded

    with embedded(_validated(args)) as config:
        return run(lambda: check(config, is_dry_run=args.dry_run))


def _validated(args: argparse.Namespace) -> Config:
    from gateway.commands.config import validated

    reader = _read(args)
    config = reader.made()
    # What is logged of each model and worker as it joins is in the findings too.
    set_up("warning" if config.log.level == "info" else config.log.level, config.log.format)
    return validated(reader)


def _config_print(args: argparse.Namespace) -> int:
    from gateway.commands.config import show

    return show(args, _read(args))


def _config_test(args: argparse.Namespace) -> int:
    _validated(args)
    print("the configuration is valid")
    return 0


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


def _engine(args: argparse.Namespace) -> int:
    from gateway.commands.engine import run as run_engine

    config = _load(args)
    set_up("warning" if config.log.level == "info" else config.log.level, config.log.format)
    return run(lambda: run_engine(args, config))


def _agent(args: argparse.Namespace) -> int:
    config = load_agent({option.key: getattr(args, option.key) for option in options(AgentConfig)})
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

    return run(lambda: demo(args.port, is_quiet=args.quiet_traffic))


def _options(args: argparse.Namespace) -> int:
    print(reference_page(AgentConfig), end="")
    return 0


def _metrics(args: argparse.Namespace) -> int:
    from gateway.processes.metric_reference import page

    print(page(), end="")
    return 0


def _completion(args: argparse.Namespace) -> int:
    from gateway.commands.completion import script

    print(script(_parser(), args.shell))
    return 0


def run(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
