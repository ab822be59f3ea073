"""Worker with the answers of SGLang, by its sources, over real sockets: HTTP, KV events, replay.

Its cache is the plainest one: which prefixes, in whole pages, were computed. See
tests/data/sglang/SOURCES.md for where each answer is from.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeAlias

import zmq
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import msgpack

from tests.support.fakes import END, seq_frame, serve, url_of

Page: TypeAlias = tuple[int, ...]
"""A page by its tokens and all before them."""


class SglangWorker:
    """Worker with the HTTP and events of SGLang; `wire` "map" is 0.5.20 and newer, "array" is 0.5.6 to 0.5.18
    with an event for each page.
    """

    def __init__(self, page_size: int = 1, *, wire: str = "map", dp_size: int = 1) -> None:
        self.page_size, self.wire, self.dp_size = page_size, wire, dp_size
        self.held: list[dict[tuple[int, ...], int]] = [{} for _ in range(dp_size)]
        self.served: list[int] = []  # the rank of each request
        self.url = ""

    async def start(self) -> "SglangWorker":
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._kept: list[list[bytes]] = [[] for _ in range(self.dp_size)]
        self._loop = asyncio.get_running_loop()
        first = next(port for port in range(21000, 60000, 2 * self.dp_size) if self._bind(port))
        self._config = {
            "publisher": "zmq",
            "endpoint": f"tcp://127.0.0.1:{first}",
            "replay_endpoint": f"tcp://127.0.0.1:{first + self.dp_size}",
        }
        self._server: TestServer = await serve(
            web.get("/health", self._health),
            web.get("/v1/models", self._models),
            web.get("/server_info", self._server_info),
            web.get("/metrics", self._metrics),
            web.post("/v1/completions", self._completions),
        )
        self.url = url_of(self._server)
        return self

    async def stop(self) -> None:
        for router in self._routers:
            self._loop.remove_reader(int(router.getsockopt(zmq.FD)))
        self._context.destroy(linger=0)
        await self._server.close()

    # what happens in it ------------------------------------------------------------------------

    def compute(self, rank: int, ids: list[int]) -> int:
        """Cached tokens of the prompt; all of its pages are cached from now on."""
        pages = [
            tuple(ids[: end + self.page_size])
            for end in range(0, len(ids) - self.page_size + 1, self.page_size)
        ]
        held = self.held[rank]
        known = next((i for i, page in enumerate(pages) if page not in held), len(pages))
        if new := pages[known:]:
            held |= {page: _hash(page) for page in new}
            self._publish(rank, self._stored(held, new))
        return min(known, (len(ids) - 1) // self.page_size) * self.page_size

    def evict(self, rank: int, num_tokens: int) -> None:
        """Evict all tokens behind the first `num_tokens` of every prompt.

        As the radix tree does: node by node, those without children first, a node's pages head first."""
        gone = [page for page in self.held[rank] if len(page) > num_tokens]
        nodes = _nodes(gone, self.page_size)
        names = [self.held[rank].pop(page) for node in reversed(nodes) for page in node]
        self._publish(rank, [self._event("BlockRemoved", block_hashes=names, medium="GPU")])

    def flush(self, rank: int) -> None:
        self.held[rank].clear()
        self._publish(rank, [self._event("AllBlocksCleared")])

    # events ------------------------------------------------------------------------------------

    def _stored(self, held: dict[tuple[int, ...], int], pages: list[tuple[int, ...]]) -> list[Any]:
        size = self.page_size
        runs = [pages] if self.wire == "map" else [[page] for page in pages]
        return [
            self._event(
                "BlockStored",
                block_hashes=[held[page] for page in run],
                parent_block_hash=held.get(run[0][:-size]),
                token_ids=[token for page in run for token in page[-size:]],
                block_size=size,
                lora_id=None,
                medium="GPU",
            )
            for run in runs
        ]

    def _event(self, tag: str, **fields: Any) -> Any:
        return {"type": tag, **fields} if self.wire == "map" else [tag, *fields.values()]

    def _publish(self, rank: int, events: list[Any]) -> None:
        seq = len(self._kept[rank])
        payload = msgpack.encode([float(seq), events, rank])
        self._kept[rank].append(payload)
        self._publishers[rank].send_multipart([b"", seq_frame(seq), payload])

    def _replay(self, rank: int) -> None:
        router = self._routers[rank]
        while int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            client, _, start = router.recv_multipart()
            head = [client, b""] + ([b""] if self.wire == "map" else [])
            for seq, payload in list(enumerate(self._kept[rank]))[int.from_bytes(start, "big") :]:
                router.send_multipart([*head, seq_frame(seq), payload])
            router.send_multipart([*head, END, b""])

    def _bind(self, first: int) -> bool:
        """Bind publishers at `first` and the ports behind it, and a replay for each behind those."""
        kinds = [zmq.PUB] * self.dp_size + [zmq.ROUTER] * self.dp_size
        sockets = [self._context.socket(kind) for kind in kinds]
        try:
            for i, socket in enumerate(sockets):
                socket.bind(f"tcp://127.0.0.1:{first + i}")
        except zmq.ZMQError:
            for socket in sockets:
                socket.close(linger=0)
            return False
        self._publishers, self._routers = sockets[: self.dp_size], sockets[self.dp_size :]
        for rank, router in enumerate(self._routers):
            self._loop.add_reader(int(router.getsockopt(zmq.FD)), self._replay, rank)
        return True

    # HTTP --------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": "m", "object": "model", "owned_by": "sglang", "root": "m", "max_model_len": 8192}
        return web.json_response({"object": "list", "data": [card]})

    async def _server_info(self, request: web.Request) -> web.Response:
        reported = {"version": "0.5.23" if self.wire == "map" else "0.5.10", "page_size": self.page_size}
        reported |= {"dp_size": self.dp_size, "max_total_num_tokens": 100_000, "disaggregation_mode": "null"}
        return web.json_response(reported | {"kv_events_config": json.dumps(self._config)})

    async def _metrics(self, request: web.Request) -> web.Response:
        ranks = range(self.dp_size)
        return web.Response(
            text="".join(f'sglang:num_running_reqs{{dp_rank="{rank}",tp_rank="0"}} 0.0\n' for rank in ranks)
        )

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        rank = int(request.headers.get("x-data-parallel-rank", 0))
        self.served.append(rank)
        ids = body["prompt"]
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
        usage["prompt_tokens_details"] = {"cached_tokens": self.compute(rank, ids)}
        choice = {"index": 0, "text": "a", "finish_reason": "length"}
        return web.json_response(
            {"id": "1", "object": "text_completion", "model": "m", "choices": [choice], "usage": usage}
        )


def _nodes(pages: Iterable[Page], size: int) -> list[list[Page]]:
    """Pages in the nodes of a radix tree, parents before their children: a node ends where prompts part."""
    ordered = sorted(pages)
    num_children = Counter(page[:-size] for page in ordered)
    nodes: list[list[Page]] = []
    for page in ordered:
        before = page[:-size]
        if nodes and nodes[-1][-1] == before and num_children[before] == 1:
            nodes[-1].append(page)
        else:
            nodes.append([page])
    return nodes


def _hash(page: tuple[int, ...]) -> int:
    """Signed hash, as SGLang's."""
    digest = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in page)).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
