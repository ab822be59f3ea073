"""Command `kvgate check`: probes each worker once, with the gateway's own probes."""

import sys
from contextlib import AbstractAsyncContextManager
from functools import partial

from gateway.app.gateway import Gateway
from gateway.app.parts.worker_access import WorkerAccessPart
from gateway.app.validation import mistakes_of
from gateway.commands.check import Checker, Finding, check_all, pair_lines
from gateway.commands.check_events import EventsCheck
from gateway.config import Config
from gateway.config.reading import ConfigErrors
from gateway.core.engine import EventSource
from gateway.core.errors import ConfigError
from gateway.core.worker import Worker
from gateway.discovery.kubernetes.cluster import cluster_access
from gateway.discovery.lookup import looked_up
from gateway.engine_test.followed import Followed, following
from gateway.http.address import names_several
from gateway.models.local_tokens import LocalTokens
from gateway.replication.agent_feeds import reach_agent
from gateway.runtime.terminal import print_lines
from gateway.tenancy.auth.admin_access import check_open
from gateway.upstream.control_client import ControlSession


def _gateway_of(config: Config) -> Gateway:
    """Make the gateway. Raises ConfigErrors with every mistake, where the gateway itself names the first."""
    try:
        check_open(config, config.admin.host)
        return Gateway(config)
    except ConfigError as exc:
        raise ConfigErrors(mistakes_of(config) or [str(exc)]) from exc


async def _looked_up(gateway: Gateway) -> tuple[list[str], list[Finding]]:
    """The URLs of all workers, and a finding for each URL that stands for several and has none."""
    urls, without, workers = [], [], gateway.parts.workers
    for url in workers.urls:
        if not names_several(url):
            urls.append(url)
            continue
        found = await looked_up(url, partial(cluster_access, gateway.config.kubernetes))
        if found.refusal:
            without.append(Finding(url, None, "", obstacle=found.refusal))
        for worker, role in found.workers:
            workers.inherit(worker, url, found.server_name)
            if declared := workers.declared.roles.get(url, role):
                workers.declared.roles[worker] = declared
            urls.append(worker)
    return list(dict.fromkeys(urls)), without


COMPLETIONS_NOTICE = (
    "kvgate check sends each worker a few completions and chats of one token, to see whether it reports "
    "cached tokens and keeps tenants' caches apart; --dry-run sends none"
)


def _follow(
    workers: WorkerAccessPart, session: ControlSession, worker: Worker, source: EventSource
) -> AbstractAsyncContextManager[Followed]:
    return following([worker], lambda worker: source, workers.engines.named, session, workers.headers)


async def check(config: Config, *, is_dry_run: bool = False) -> int:
    """Print each worker's mode. Returns 1 if a worker is not reached, or makes other tokens than the local
    tokenizer."""
    gateway = _gateway_of(config)
    try:
        findings, redis_answers = await _findings(gateway, is_dry_run=is_dry_run)
    finally:
        await gateway.stop(0)
    lines = [line for finding in findings for line in finding.lines()]
    lines += pair_lines(finding.worker for finding in findings)
    print_lines(*(lines or ["the configuration is valid; no --worker is given, so none was reached"]))
    return 0 if redis_answers and all(finding.is_good for finding in findings) else 1


async def _findings(gateway: Gateway, *, is_dry_run: bool) -> tuple[list[Finding], bool]:
    """Return what is found of each worker, and True if Redis answers or none is configured."""
    config, workers, prompts = gateway.config, gateway.parts.workers, gateway.parts.prompts
    if workers.urls and not is_dry_run:
        print_lines(COMPLETIONS_NOTICE, to=sys.stderr)
    timeout_s, headers = config.lifecycle.probe_timeout_s, workers.headers
    async with ControlSession(
        workers.tls, timeout_s=timeout_s, headers=headers, access=workers.access
    ) as session:
        checker = Checker(
            session=session,
            engines=workers.engines,
            source_of=lambda facts, rank: workers.declared.event_source(
                facts, rank, (config.events.port, config.events.replay_port)
            ),
            events=EventsCheck(gateway.parts.feeds.reach, partial(_follow, workers, session)),
            has_tokenizer=prompts.catalog.has_tokenizer,
            events_port=config.events.port,
            reach_agent=partial(reach_agent, workers.agents, timeout_s=timeout_s),
            tokens=prompts.catalog,
            declared=workers.declared,
            eligibility=gateway.fleet.eligibility,
            sends_completions=not is_dry_run,
            ours_of=partial(LocalTokens, prompts.catalog, prompts.source),
        )
        urls, without = await _looked_up(gateway)
        findings = [*await check_all(checker, urls), *without]
    shared = [each for each in (gateway.parts.index.shared, gateway.parts.bookings.bookings) if each]
    return findings, all([await each.print_check() for each in shared])
