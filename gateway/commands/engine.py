"""Command `kvgate engine test URL`: the conformance test of an engine, with the gateway's own probes."""

import argparse
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from gateway.app.gateway import Gateway
from gateway.config import Config
from gateway.core.engine import EventSource
from gateway.core.worker import Worker
from gateway.discovery.probe import Probe, ProbeError
from gateway.discovery.probed import Facts
from gateway.engine_test.followed import Followed, following
from gateway.engine_test.questions import TIMEOUT_S, Examination
from gateway.engine_test.report import EngineFinding, Report, Verdict
from gateway.engine_test.subject import Subject
from gateway.runtime.terminal import print_json, print_lines
from gateway.upstream.control_client import ControlSession

PROBE_TIMEOUT_S = 30.0
"""Time for the answer to a probe, which needs no prompt; longer than a gateway waits."""
MAX_NAMES = 20
"""Names of models in the report."""
_TOKEN_IDS = EngineFinding(
    "prompts",
    Verdict.INCONCLUSIVE,
    "it takes texts only, and the questions have token ids, which may end it; nothing was asked",
    "lists of prompts and token ids go to other workers of the model, or get 400",
)


async def run(args: argparse.Namespace, config: Config) -> int:
    """Print the report. Returns 1 if a finding is FAIL, or the worker was not reached."""
    gateway = Gateway(config)
    try:
        report = await report_on(gateway, args.url, args.timeout_s)
    finally:
        gateway.close_context()
    if args.json:
        print_json(report.fields())
    else:
        print_lines(*report.lines())
    return 0 if report.is_usable else 1


async def report_on(gateway: Gateway, url: str, timeout_s: float = TIMEOUT_S) -> Report:
    """Test a worker, with `timeout_s` for each question: the test ends however the worker hangs."""
    config = gateway.config
    made = partial(ControlSession, gateway.worker_tls, headers=gateway.worker_headers, access=gateway.access)
    async with made() as session, made(timeout_s=min(timeout_s, PROBE_TIMEOUT_S)) as short:
        probe = Probe(url, gateway.engines, short, {}, config.events.port)
        try:
            await probe.check_health()
            facts = await probe.facts()
        except ProbeError as exc:
            return Report(
                url, [EngineFinding("probe", Verdict.FAIL, str(exc), "it would not join the fleet")]
            )

        if not gateway.engines.named(facts.engine).takes_lists:
            return Report(_subject(facts), [_TOKEN_IDS])

        def source_of(worker: Worker) -> EventSource | None:
            ports = config.events.port, config.events.replay_port
            return gateway.declared.event_source(facts, worker.dp_rank, ports)

        def follow(workers: Sequence[Worker]) -> AbstractAsyncContextManager[Followed]:
            return following(workers, source_of, gateway.engines.named, session, gateway.worker_headers)

        examination = Examination(Subject(url, facts, probe, session), follow, timeout_s)
        findings = [finding async for finding in examination.findings()]
    return Report(_subject(facts), findings)


def _subject(facts: Facts) -> str:
    names = ", ".join(model.id for model in facts.models[:MAX_NAMES])
    names += f" and {more} more" if (more := len(facts.models) - MAX_NAMES) > 0 else ""
    return f"{facts.url}: {facts.engine} {facts.version or 'of unknown version'}, models {names or 'none'}"
