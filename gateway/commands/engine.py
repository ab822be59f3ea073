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
from gateway.engine_test.subject import Subject, conventions_of
from gateway.models.local_tokens import LocalTokens
from gateway.runtime.terminal import print_json, print_lines
from gateway.upstream.control_client import ControlSession

PROBE_TIMEOUT_S = 30.0
"""Time for the answer to a probe, which needs no prompt; longer than a gateway waits."""
MAX_NAMES = 20
"""Names of models in the report."""


async def run(args: argparse.Namespace, config: Config) -> int:
    """Print the report. Returns 1 if a finding is FAIL, or the worker was not reached."""
    gateway = Gateway(config)
    try:
        report = await report_on(gateway, args.url, args.timeout_s)
    finally:
        await gateway.stop(0)
    if args.json:
        print_json(report.fields())
    else:
        print_lines(*report.lines())
    return 0 if report.is_usable else 1


async def report_on(gateway: Gateway, url: str, timeout_s: float = TIMEOUT_S) -> Report:
    """Test a worker, with `timeout_s` for each question: the test ends however the worker hangs."""
    config = gateway.config
    access, prompts = gateway.parts.workers, gateway.parts.prompts
    made = partial(ControlSession, access.tls, headers=access.headers, access=access.access)
    async with made() as session, made(timeout_s=min(timeout_s, PROBE_TIMEOUT_S)) as short:
        probe = Probe(url, access.engines, short, {}, config.events.port)
        try:
            await probe.check_health()
            facts = await probe.facts()
        except ProbeError as exc:
            return Report(
                url, [EngineFinding("probe", Verdict.FAIL, str(exc), "it would not join the fleet")]
            )

        def source_of(worker: Worker) -> EventSource | None:
            ports = config.events.port, config.events.replay_port
            return access.declared.event_source(facts, worker.dp_rank, ports)

        def follow(workers: Sequence[Worker]) -> AbstractAsyncContextManager[Followed]:
            return following(workers, source_of, access.engines.named, session, access.headers)

        conventions = conventions_of(access.engines.named(facts.engine), facts.version)
        subject = Subject(url, facts, probe, session, conventions=conventions)
        found = await _tokenizer(gateway, subject)
        ours = LocalTokens(prompts.catalog, prompts.source, subject.worker)
        examination = Examination(subject, follow, timeout_s, ours)
        findings = [*found, *[finding async for finding in examination.findings()]]
    return Report(_subject(facts), findings)


async def _tokenizer(gateway: Gateway, subject: Subject) -> list[EngineFinding]:
    """Load the tokenizers that are given, and compare them with the worker's own tokens of 20 probes."""
    config = gateway.config
    if not (config.tokenizer.path or config.models) or not subject.facts.models:
        return []

    async def ask(path: str, body: object) -> bytes | None:
        answer = await subject.post(path, body)
        return answer.body if answer.status == 200 else None

    reports = await gateway.parts.prompts.catalog.look(subject.worker, ask)
    consequence = "its cache is looked up under other tokens"
    found = [
        EngineFinding("tokenizer", Verdict.FAIL, report.fault, consequence)
        if report.fault
        else EngineFinding("tokenizer", Verdict.OK, report.note)
        for report in reports
    ]
    if subject.conventions.tokenizes_for_kvgate:
        return found
    return [each for each in found if each.verdict is Verdict.FAIL]  # not compared by this engine's own


def _subject(facts: Facts) -> str:
    names = ", ".join(model.id for model in facts.models[:MAX_NAMES])
    names += f" and {more} more" if (more := len(facts.models) - MAX_NAMES) > 0 else ""
    return f"{facts.url}: {facts.engine} {facts.version or 'of unknown version'}, models {names or 'none'}"
