"""Transfers of one worker: its channel, its pinned blocks, and its fetches from others."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal
from uuid import uuid4

import aiohttp
from aiohttp import web
from xxhash import xxh3_64_intdigest

from engines.sim.config import SimConfig
from engines.sim.faults import FaultPlan
from engines.sim.pd.channel import ChannelClient, ChannelConnection, ChannelError, Message, TransferChannel
from engines.sim.pd.leases import Leases
from engines.sim.pd.leg import KvLoad, Source
from engines.sim.pd.mooncake import found, query_response
from engines.sim.rank import SimRank
from engines.sim.scheduler import Sequence

HEARTBEATS_PER_LEASE = 6  # vLLM's


class Transfers:
    """Transfers of one worker. Open it in the loop that serves. A restart makes a new one, with a new engine
    id."""

    def __init__(self, config: SimConfig, version: str) -> None:
        self.engine_id = str(uuid4())
        self.leases = Leases(config.lease_s)
        self.num_loading = 0
        self.num_loaded = 0
        self.num_failed = 0
        self.num_mismatched = 0
        self.num_stored = 0
        self.seconds = 0.0
        self._config = config
        self._fit = {
            "version": version,
            "model": config.model,
            "cache_dtype": config.cache_dtype,
            "protocol": config.pd_protocol,
        }
        self._loop = asyncio.get_running_loop()
        self._channel = TransferChannel(self._answer, self._gone)
        self._faults = FaultPlan()
        self._known: set[str] = set()
        self._places: dict[str | None, tuple[str, int]] = {}
        self._bootstrap: web.AppRunner | None = None
        self.bootstrap_port: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrivals: dict[str, asyncio.Event] = {}
        self._ends: dict[str, asyncio.Future[bool]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Transfers({self.engine_id[:8]}, {self.leases!r}, {self.num_loading} loading)"

    @property
    def port(self) -> int:
        return self._channel.port

    async def open(self, port: int, bootstrap_port: int = 0) -> None:
        """Listen. Raises OSError where a port is taken."""
        config = self._config
        await self._channel.open(config.host, port)
        if config.pd_store is not None:
            config.pd_store.mkdir(parents=True, exist_ok=True)
        if config.pd_protocol == "mooncake" and config.pd_role != "decode":
            app = web.Application()
            app.router.add_get("/query", self._query)
            self._bootstrap = web.AppRunner(app, access_log=None)
            await self._bootstrap.setup()
            await web.TCPSite(self._bootstrap, config.host, bootstrap_port, reuse_address=True).start()
            self.bootstrap_port = self._bootstrap.addresses[0][1]

    async def _query(self, request: web.Request) -> web.Response:
        config = self._config
        return web.json_response(query_response(self.engine_id, config.host, self.port, config.dp_size))

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for event in self._arrivals.values():
            event.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()
        if self._bootstrap is not None:
            await self._bootstrap.cleanup()
            self._bootstrap = None

    def set_faults(self, faults: FaultPlan) -> None:
        self._faults = faults
        if faults.drop_pinned:
            for key in self.leases.keys:
                if self.leases.drop(key):
                    self._end(key, False)

    def stats(self) -> dict[str, object]:
        leases = self.leases
        return {
            "engine_id": self.engine_id,
            "port": self.port,
            "pinned": leases.keys,
            "pinned_blocks": leases.num_pinned_blocks,
            "fetched": leases.num_fetched,
            "expired_leases": leases.num_expired,
            "late_fetches": leases.num_late,
            "loading": self.num_loading,
            "loaded": self.num_loaded,
            "failed_loads": self.num_failed,
            "mismatched_loads": self.num_mismatched,
            "stored": self.num_stored,
            "bootstrap_port": self.bootstrap_port,
        }

    # prefill --------------------------------------------------------------------------------------

    def pin(self, rank: SimRank, sequence: Sequence) -> None:
        """Keep the blocks of a finished prompt until they are fetched or the lease ends."""
        key, cached = sequence.pins, sequence.cached
        assert key is not None
        sequence.pinned_ids = [block.number for block in cached.blocks]
        if self._config.pd_protocol == "mooncake" and sequence.finish != "length":
            rank.release(sequence)  # as vLLM, which sends only prompts that ended by their length
            return
        if self._config.pd_protocol == "sglang":
            self._ends[key] = self._loop.create_future()
        self.leases.pin(
            key,
            sequence.num_prompt,
            len(cached.blocks),
            _digest(sequence),
            lambda: rank.release(sequence),
            self._loop.time(),
        )
        self._schedule()
        if self._faults.drop_pinned:
            self.leases.drop(key)
            self._end(key, False)
        if event := self._arrivals.pop(key, None):
            event.set()

    async def delivered(self, key: str) -> bool:
        """Wait until the blocks of `key` are gone. Returns True if they were fetched. Once for each key."""
        try:
            return await self._ends[key]
        finally:
            self._ends.pop(key, None)
            self.leases.drop(key)

    def store(self, sequence: Sequence) -> None:
        """Leave a computed prompt in the shared store."""
        assert sequence.stores is not None
        sequence.stores.touch()
        self.num_stored += 1

    def _schedule(self) -> None:
        deadline = self.leases.next_deadline
        if self._timer is None and deadline is not None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for key in self.leases.expire(self._loop.time()):
            self._end(key, False)
        self._schedule()

    def _end(self, key: str, is_fetched: bool) -> None:
        end = self._ends.get(key)
        if end is not None and not end.done():
            end.set_result(is_fetched)

    async def _answer(self, message: Message, talk: ChannelConnection) -> Message | None:
        key = str(message.get("key"))
        match message.get("op"):
            case "hello":
                return {"engine_id": self.engine_id, "fit": self._fit, "tp_size": self._config.tp_size}
            case "pull":
                return await self._pulled(key, bool(message.get("wait")), talk)
            case "done" if talk.key is not None:
                self.leases.fetched(talk.key)
                self._end(talk.key, True)
                talk.key = None
            case "renew":
                self.leases.renew(key, self._loop.time())
            case "drop":
                if self.leases.drop(key):
                    self._end(key, False)
        return {}

    async def _pulled(self, key: str, may_wait: bool, talk: ChannelConnection) -> Message | None:
        if self._faults.hang_transfer:
            return None
        if may_wait and key not in self.leases.keys:
            event = self._arrivals.setdefault(key, asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), self._config.lease_s)
            except TimeoutError:
                self._arrivals.pop(key, None)
        pinned = self.leases.take(key)
        if pinned is None:
            return {"error": f"no blocks of {key}: fetched before, expired, or never computed"}
        talk.key = key
        return {"num_tokens": pinned.num_tokens, "digest": pinned.digest}

    def _gone(self, talk: ChannelConnection) -> None:
        if talk.key is not None:
            self.leases.give_back(talk.key)

    # decode ---------------------------------------------------------------------------------------

    def fetch(self, rank: SimRank, sequence: Sequence) -> None:
        """Fill the blocks of a sequence that loads; its rank is notified of the outcome."""
        load = sequence.load
        assert load is not None
        if load.source is None and load.path is None:
            return  # as vLLM, which waits for data that it never requested
        self._run(self._fetch(rank, sequence, load))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name="transfer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def await_turn(self, sequence: Sequence) -> None:
        """Send heartbeats to prefill while a sequence waits for its turn, as vLLM does."""
        source = sequence.load.source if sequence.load is not None else None
        if self._config.pd_protocol == "nixl" and source is not None:
            self._run(self._renew(sequence, source))

    async def _renew(self, sequence: Sequence, source: Source) -> None:
        while True:
            await asyncio.sleep(self._config.lease_s / HEARTBEATS_PER_LEASE)
            if sequence.is_finished or sequence.cached.blocks:
                return  # its client has left, or it has begun
            await self.notify(source, "renew")

    async def notify(self, source: Source, what: Literal["drop", "renew"]) -> None:
        """Notify prefill that its blocks will not be fetched, or that they will."""
        try:
            async with asyncio.timeout(self._config.pull_timeout_s):
                caller = await ChannelClient.open(source.host, source.port, retries=False)
                try:
                    await caller.ask(op=what, key=source.key)
                finally:
                    caller.close()
        except (ChannelError, TimeoutError):
            return  # its lease ends by itself

    async def _fetch(self, rank: SimRank, sequence: Sequence, load: KvLoad) -> None:
        self.num_loading += 1
        started = self._loop.time()
        try:
            if load.source is not None:
                await self._pull(sequence, load.source)
            else:
                await asyncio.sleep(self._cost_s(sequence))
        except (ChannelError, TimeoutError):
            self.num_failed += 1
            rank.load_failed(sequence, self._config.kv_load_failure == "recompute")
        else:
            self.num_loaded += 1
            self.seconds += self._loop.time() - started
            rank.loaded(sequence)
        finally:
            self.num_loading -= 1

    async def _pull(self, sequence: Sequence, source: Source) -> None:
        caller: ChannelClient | None = None
        try:
            async with asyncio.timeout(self._config.pull_timeout_s):
                is_known = source.engine_id is not None and source.engine_id in self._known
                host, port = await self._resolve(source)
                caller = await ChannelClient.open(host, port, retries=not is_known)
                self._check(source, await caller.ask(op="hello"))
            patience_s = self._config.lease_s if source.may_wait else self._config.pull_timeout_s
            async with asyncio.timeout(patience_s):
                answer = await caller.ask(op="pull", key=source.key, wait=source.may_wait)
            self._compare(sequence, answer)
            await asyncio.sleep(self._cost_s(sequence))
            await caller.ask(op="done")
        finally:
            if caller is not None:
                caller.close()

    async def _resolve(self, source: Source) -> tuple[str, int]:
        """Resolve an unknown engine by its bootstrap port, as Mooncake's decode does."""
        if source.bootstrap is None:
            return source.host, source.port
        if source.engine_id not in self._places:
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"{source.bootstrap}/query") as answer,
                ):
                    place = found(await answer.json(), str(source.engine_id))
            except (aiohttp.ClientError, ValueError, KeyError, AttributeError) as exc:
                raise ChannelError(f"{source.bootstrap}: {exc}") from exc
            if place is None:
                raise ChannelError(f"engine id {source.engine_id} is not known at {source.bootstrap}")
            self._places[source.engine_id] = place
        return self._places[source.engine_id]

    def _check(self, source: Source, hello: Message) -> None:
        """Check an engine as the handshake does; one that passed is known from then on."""
        if source.engine_id not in (None, hello["engine_id"]):
            raise ChannelError(f"engine id {hello['engine_id']}, expected {source.engine_id}")
        if hello["fit"] != self._fit:
            raise ChannelError(f"does not fit: {hello['fit']} beside {self._fit}")
        small, large = sorted((int(hello["tp_size"]), self._config.tp_size))
        if large % small:
            raise ChannelError(f"tensor parallel sizes {small} and {large} do not divide")
        self._known.add(hello["engine_id"])

    def _compare(self, sequence: Sequence, reply: Message) -> None:
        """Garble the output if the KV is another prompt's: real engines do not check it."""
        if reply["digest"] != _digest(sequence) and sequence.load is not None:
            self.num_mismatched += 1
            sequence.load.on_mismatch()

    def _cost_s(self, sequence: Sequence) -> float:
        config = self._config
        tokens_s = sequence.num_external_tokens / config.transfer_tokens_per_s
        return (config.transfer_latency_s + tokens_s) * self._faults.slow_transfer


def _digest(sequence: Sequence) -> int:
    """Digest of the values that keys and values depend on: tokens and adapter."""
    cached = sequence.cached
    return xxh3_64_intdigest(cached.tokens[: sequence.num_prompt].tobytes() + (cached.adapter or "").encode())
