"""Command `kvgate check`: probes each worker once, with the gateway's own probes."""

import sys
from contextlib import AbstractAsyncContextManager
from functools import partial

from gateway.app.gateway import Gateway
from gateway.app.validation import mistakes_of
from gateway.app.workers import inherit_settings
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
    urls, without = [], []
    for url in gateway.worker_urls:
        if not names_several(url):
            urls.append(url)
            continue
        found = await looked_up(url, partial(cluster_access, gateway.config.kubernetes))
        if found.refusal:
            without.append(Finding(url, None, "", obstacle=found.refusal))
        for worker, role in found.workers:
            inherit_settings(gateway, worker, url, found.server_name)
            if declared := gateway.declared.roles.get(url, role):
                gateway.declared.roles[worker] = declared
            urls.append(worker)
    return list(dict.fromkeys(urls)), without


COMPLETIONS_NOTICE = (
    "kvgate check sends each worker a few completions and chats of one token, to see whether it reports "
    "cached tokens and keeps tenants' caches apart; --dry-run sends none"
)


def _follow(
    gateway: Gateway, session: ControlSession, worker: Worker, source: EventSource
) -> AbstractAsyncContextManager[Followed]:
    return following([worker], lambda worker: source, gateway.engines.named, session, gateway.worker_headers)


async def check(config: Config, *, is_dry_run: bool = False) -> int:
    """Print each worker's mode. Returns 1 if a worker is not reached, or makes other tokens than the local
    tokenizer."""
    gateway = _gateway_of(config)
    if gateway.worker_urls and not is_dry_run:
        print_lines(COMPLETIONS_NOTICE, to=sys.stderr)
    timeout_s, headers = config.lifecycle.probe_timeout_s, gateway.worker_headers
    async with ControlSession(
        gateway.worker_tls, timeout_s=timeout_s, headers=headers, access=gateway.access
    ) as session:
        checker = Checker(
            session=session,
            engines=gateway.engines,
            source_of=lambda facts, rank: gateway.declared.event_source(
                facts, rank, (config.events.port, config.events.replay_port)
            ),
            events=EventsCheck(gateway.reach_events, partial(_follow, gateway, session)),
            has_tokenizer=gateway.catalog.has_tokenizer,
            events_port=config.events.port,
            reach_agent=partial(reach_agent, gateway.agents, timeout_s=timeout_s),
            tokens=gateway.catalog,
            declared=gateway.declared,
            eligibility=gateway.fleet.eligibility,
            sends_completions=not is_dry_run,
            ours_of=partial(LocalTokens, gateway.catalog, gateway.prompts),
        )
        urls, without = await _looked_up(gateway)
        findings = [*await check_all(checker, urls), *without]
    redis_answers = all([await sharing.print_check() for sharing in gateway.sharing])
    gateway.close_context()
    lines = [line for finding in findings for line in finding.lines()]
    lines += pair_lines(finding.worker for finding in findings)
    print_lines(*(lines or ["the configuration is valid; no --worker is given, so none was reached"]))
    return 0 if redis_answers and all(finding.is_good for finding in findings) else 1
