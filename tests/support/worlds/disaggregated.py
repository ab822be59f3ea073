"""Requests of which a prefill worker computes the prompt and a decode worker answers."""

import json
from typing import Any

import pytest

from engines import KV_CONNECTORS
from gateway.config import load
from gateway.core.blocks import root_hash
from gateway.core.decision import Decision, PrefillChoice
from gateway.core.value import replace
from gateway.core.worker import Role, ServedModel, Transfer, Worker, WorkerId
from gateway.costs.transfer_speed import TransferSpeed
from gateway.disaggregation.legs import LegServices
from gateway.disaggregation.stats import DisaggregationStats, disaggregation_stats_of
from gateway.policies.disaggregation import DisaggregationPolicy, modes_of
from gateway.proxy.context import Context
from gateway.proxy.dispatch import Dispatch
from tests.support import fakes
from tests.support.worlds.exchanges import ExchangeWorld, FakePool

PARAMS = {"remote_block_ids": [[1]], "remote_engine_id": "e", "remote_host": "h", "remote_port": 1}
PREFILLED = {"usage": {"prompt_tokens": 3}, "choices": [{}], "kv_transfer_params": PARAMS}


def plain(body: Any, status: str = "200 OK") -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(data), data)


class DisaggregatedWorld(ExchangeWorld):
    """Prefill workers begin with p, decode workers with d; all requests are disaggregated."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *names: str,
        connector: str = "nixl",
        mode: str = "always",
        **options: Any,
    ) -> None:
        transfer = TransferSpeed(tokens_per_s=1000, latency_s=0.01)
        self.disaggregation_stats = DisaggregationStats(DisaggregationPolicy(transfer, modes_of([mode])))
        self.busied: list[tuple[str, float]] = []
        super().__init__(monkeypatch, **options)
        self.router.disaggregation = self.disaggregation_stats.policy
        for name in names:
            self.join(name, connector)

    def make_dispatch(self, context: Context) -> Dispatch:
        self.legs = LegServices(
            disaggregation_stats=self.disaggregation_stats,
            connectors=KV_CONNECTORS,
            router=context.router,
            metrics=context.metrics,
            pools=context.pools,
            outgoing=context.outgoing,
            start=context.tasks.start,
            log=context.log,
            failed=context.failed,
            busy=lambda *what: self.busied.append(what),
            refuse_usage=context.usages.refuse,
        )
        return Dispatch(context, self.legs)

    def join(self, name: str, connector: str) -> None:
        role = Role.PREFILL if name.startswith("p") else Role.DECODE
        transfer = Transfer(connector, f"{name[0]}:8998", "engine", is_bound=connector == "bootstrap")
        worker = Worker(
            WorkerId(name), f"http://{name}", (ServedModel("m", "root"),), block_size=16, role=role
        )
        self.router.fleet.add(replace(worker, transfer=transfer))
        self.router.index.add_worker(worker.id, root_hash("root"), 16)
        self.router.assumed.add_worker(worker.id, keep_s=10, max_blocks=1000)
        self.pools[name] = FakePool(worker.url)
        self.context.pools.by_url[worker.url] = self.pools[name]

    def asked(self, name: str) -> dict[str, Any]:
        """The latest body that a worker got."""
        fields = json.loads(self.transport(name).out.rpartition(b"\r\n\r\n")[2])
        assert isinstance(fields, dict)
        return fields

    def was_asked(self, name: str) -> bool:
        return bool(self.pools[name].transports and self.pools[name].transports[-1].out)

    def load(self, name: str) -> int:
        return self.router.ledger.load(WorkerId(name)).num_in_flight

    def is_clean(self) -> bool:
        is_open = self.router._prefilling or self.router._open or self.disaggregation_stats.pinned
        return super().is_clean() and not is_open


def prefilled(world: DisaggregatedWorld, name: str = "p:1", body: Any = PREFILLED) -> None:
    world.transport(name).feed(plain(body))


def split_decision(*, is_split: bool) -> Decision:
    made = fakes.decision("d1", "d:1", "p:1")
    prefill = made.candidates[1]
    reason = "lower predicted TTFT with a transfer" if is_split else "lower predicted TTFT without a transfer"
    split = PrefillChoice(reason, prefill if is_split else None, candidates=(prefill,))
    return replace(made, split=split)


def disaggregation_stats() -> DisaggregationStats:
    return disaggregation_stats_of(load({"disaggregation": ["m=never"]}, environ={}))
