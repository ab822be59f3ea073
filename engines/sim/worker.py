"""Simulated worker: ranks, HTTP and their ports, from start to stop, and restarts in between."""

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable

import uvloop
from aiohttp import web
from aiohttp.typedefs import Middleware

from engines.sim.adapters import AdapterRoutes
from engines.sim.admin import AdminRoutes, answer
from engines.sim.config import SimConfig
from engines.sim.faults import FaultPlan, parse_faults
from engines.sim.params import ApiError
from engines.sim.pd.transfers import Transfers
from engines.sim.rank import SimRank
from engines.sim.server import GUARDED, Server, SimEngine, TextModel, abort

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

KEEPALIVE_S = 5.0  # uvicorn's
SHUTDOWN_S = 1.0
MAX_BODY_BYTES = 64 << 20


class Sim:
    """Simulated worker: `start` binds the ports, `stop` frees them; `url` and the endpoints are valid in
    between."""

    def __init__(self, config: SimConfig, texts: TextModel | None = None) -> None:
        """Make a worker. `texts`: the tokenizer, if it is loaded already."""
        self.config = config
        self._texts = texts
        self.engine: SimEngine | None = None
        self._port = config.port
        self._ports: list[tuple[int, int | None]] = [_ports(config, rank) for rank in range(config.dp_size)]
        self._pd_port, self._bootstrap_port = config.pd_port, config.bootstrap_port
        self._runner: web.AppRunner | None = None
        self._restarts: asyncio.Queue[float] = asyncio.Queue()
        self._watch: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Sim({self.url}, {self.engine.ranks if self.engine else 'stopped'})"

    @property
    def url(self) -> str:
        return f"http://{self.config.host}:{self._port}"

    @property
    def events_endpoint(self) -> str:
        """Events endpoint of rank 0."""
        return f"tcp://{self.config.host}:{self._ports[0][0]}"

    @property
    def replay_endpoint(self) -> str:
        return f"tcp://{self.config.host}:{self._ports[0][1]}"

    @property
    def pd_port(self) -> int:
        """Port at which other workers fetch blocks; SGLang's bootstrap port."""
        return self._pd_port

    @property
    def bootstrap_port(self) -> int:
        """Port of Mooncake's bootstrap server."""
        return self._bootstrap_port

    @property
    def ranks(self) -> list[SimRank]:
        assert self.engine is not None, "not started"
        return list(self.engine.ranks)

    async def start(self) -> "Sim":
        """Bind the ports. Raises OSError where a port is taken, PromptError or VocabularyError for the
        tokenizer."""
        texts = self._texts or TextModel.load(self.config.tokenizer)
        faults = parse_faults(self.config.faults) if self.config.faults else FaultPlan()
        engine = SimEngine(self.config, texts, [], 0.0, faults, random.Random(self.config.seed))
        self.engine = engine
        try:
            await self._open(engine)
        except OSError:
            await self._close()
            raise
        self._watch = asyncio.get_running_loop().create_task(self._watch_restarts(engine), name="restarts")
        return self

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
        await self._close()

    async def finish(self) -> None:
        """Finish requests in flight, then stop, as an engine after SIGTERM does."""
        engine, config = self.engine, self.config
        assert engine is not None and self._runner is not None, "not started"
        if config.shutdown == "503":
            engine.is_finishing = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(config.shutdown_s):
                    while any(rank.num_clients for rank in engine.ranks):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
        elif config.shutdown_s:
            await self._runner.cleanup()  # closes idle connections and listeners, waits for the rest
        await self.stop()

    async def restart(self, down_s: float = 0.0) -> None:
        """Restart as a crash and a new process on the same ports would: empty cache, sequence numbers
        from 0."""
        assert self.engine is not None, "not started"
        await self._close()
        await asyncio.sleep(down_s)
        await self._open(self.engine)

    async def _watch_restarts(self, engine: SimEngine) -> None:
        while True:
            await self.restart(await self._restarts.get())

    async def _open(self, engine: SimEngine) -> None:
        engine.ranks = [SimRank(self.config, number) for number in range(self.config.dp_size)]
        engine.started = time.time()
        engine.adapters = {name: name for name in self.config.lora}
        if self.config.events:
            for rank, (events_port, replay_port) in zip(engine.ranks, self._ports, strict=True):
                rank.open(events_port, replay_port)
                assert rank.publisher is not None
                self._ports[rank.number] = (rank.publisher.events_port, rank.publisher.replay_port)
        if self.config.pd_role:
            await self._open_transfers(engine)
        engine.set_faults(engine.faults)
        self._runner = web.AppRunner(
            self._app(engine),
            access_log=None,
            handler_cancellation=True,  # a client that disconnects ends its request
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=max(SHUTDOWN_S, self.config.shutdown_s),
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self.config.host, self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def _open_transfers(self, engine: SimEngine) -> None:
        engine.transfers = Transfers(self.config, engine.version)
        await engine.transfers.open(self._pd_port, self._bootstrap_port)
        self._pd_port = engine.transfers.port
        self._bootstrap_port = engine.transfers.bootstrap_port or 0
        for rank in engine.ranks:
            rank.transfers = engine.transfers

    async def _close(self) -> None:
        """Close connections first, so that no request outlives its rank."""
        runner, self._runner = self._runner, None
        if runner is not None:
            for site in list(runner.sites):
                await site.stop()
            for connection in list(runner.server.connections if runner.server else ()):
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()
        if self.engine is not None and self.engine.transfers is not None:
            await self.engine.transfers.close()
            self.engine.transfers = None
        for rank in self.engine.ranks if self.engine else ():
            rank.close()

    def _app(self, engine: SimEngine) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._middleware(engine)])
        Server(engine).add_routes(app)
        AdminRoutes(engine, self._restarts).add_routes(app)
        if self.config.runtime_lora:
            AdapterRoutes(engine).add_routes(app)
        return app

    def _middleware(self, engine: SimEngine) -> Middleware:
        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            if not request.path.startswith("/sim/"):
                refusal = await _refuse(request, engine)
                if refusal is not None:
                    return refusal
            try:
                return await handler(request)
            except ApiError as exc:
                engine.totals.rejected += 1
                return web.Response(body=exc.body(), status=exc.status, content_type="application/json")
            except web.HTTPException as exc:
                allow = {"Allow": exc.headers["Allow"]} if "Allow" in exc.headers else None
                refused = answer({"detail": exc.reason}, exc.status)
                refused.headers.update(allow or {})
                return refused

        return middleware


async def _refuse(request: web.Request, engine: SimEngine) -> web.Response | None:
    """Response that refuses a request: faults of connections, a worker that finishes, and the API key; else
    None."""
    if engine.is_finishing and request.path != "/metrics":
        return web.Response(status=503, text="Service Unavailable")
    match engine.faults.connections:
        case "reset":
            abort(request, with_reset=True)
            return web.Response(status=503)  # never sent
        case "die" if request.method == "POST":
            await request.read()
            engine.totals.requests += 1
            abort(request)
            return web.Response(status=503)  # never sent
        case "503":
            return web.Response(status=503, text="Service Unavailable")
        case "hang":
            await asyncio.get_running_loop().create_future()  # until the client leaves
    key = engine.config.api_key
    if key and request.path.startswith(GUARDED) and request.headers.get("Authorization") != f"Bearer {key}":
        return answer({"error": "Unauthorized"}, 401)
    return None


def _ports(config: SimConfig, rank: int) -> tuple[int, int | None]:
    events = config.events_port + rank if config.events_port else 0
    replay = config.replay_port + rank if config.replay_port else 0
    return events, replay if config.replay else None


async def serve(config: SimConfig) -> None:
    """Serve until SIGINT or SIGTERM, or the end of standard input with `until_eof`."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    if config.until_eof:
        loop.add_reader(sys.stdin.fileno(), done.set)
    sim = await Sim(config).start()
    sys.stdout.write(_ready_line(sim) + "\n")
    sys.stdout.flush()
    await done.wait()
    await sim.finish()


def _ready_line(sim: Sim) -> str:
    events = f" events={sim.events_endpoint}" if sim.config.events else ""
    replay = f" replay={sim.replay_endpoint}" if sim.config.events and sim.config.replay else ""
    role = f" {sim.config.pd_role}={sim.config.pd_protocol}:{sim.pd_port}" if sim.config.pd_role else ""
    return f"sim ready: {sim.url} model={sim.config.model}{events}{replay}{role}"


def run(config: SimConfig) -> None:
    """Run a worker, blocking. Raises as `Sim.start` does."""
    uvloop.run(serve(config))
