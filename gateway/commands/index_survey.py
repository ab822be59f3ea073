"""Survey of the index in Redis, for `kvgate index show|top|drop|verify`.

Everything is found by names that are written down there (`redis/keys.py`): no walk of the keyspace, and a
server that works notices no more than some reads. Blocks are those of the tree where `--index redis` keeps
one, else of the snapshot and log by which gateways replicate.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from gateway.core.blocks import BlockHash
from gateway.core.errors import ConfigError
from gateway.core.event_stream import StreamState
from gateway.core.worker import WorkerId
from gateway.index.redis_tree.browse import Browser, PublishedWorker
from gateway.index.redis_tree.tree import tree_key
from gateway.redis.client import UnusableRedis, foreign_schema
from gateway.redis.keys import SCHEMA, WorkerKeys, schema_key, trees_key, workers_key
from gateway.redis.options import RedisOptions
from gateway.replication.redis_log import READ_AT_ONCE, START, entry
from gateway.replication.takeover import restore

AT_ONCE = 500
"""Keys dropped by one command: all at once would block the server."""


@dataclass(slots=True)
class SurveyRow:
    """Worker in the survey. `blocks` is None where its data cannot be read; `num_bytes` is its part of the
    edges that it shares, `log_bytes` the size of its log and snapshot."""

    worker: WorkerId
    model: str
    root: BlockHash
    keys: WorkerKeys | None = None
    published: PublishedWorker | None = None
    stream: StreamState | None = None
    blocks: set[BlockHash] | None = None
    num_edges: int = 0
    num_bytes: float = 0.0
    log_bytes: int = 0
    epoch: int = 0
    holder: str = ""
    faults: list[str] = field(default_factory=list)


class Survey:
    def __init__(self, client: "Redis", options: RedisOptions) -> None:
        self._client = client
        self._options = options
        self.shared: Counter[tuple[BlockHash, int]] = Counter()  # (first block, blocks) ─► workers

    def __repr__(self) -> str:
        return f"Survey({self._options.where}, {self._options.prefix}:)"

    async def check(self) -> None:
        """Check the schema version. Raises Refused for data of another version."""
        found = await _of(self._client.get(schema_key(self._options.prefix)))
        if found not in (None, SCHEMA):
            raise UnusableRedis(foreign_schema(found, self._options))

    async def trees(self) -> dict[BlockHash, str]:
        """Model by root."""
        found = await _of(self._client.hgetall(trees_key(self._options.prefix)))
        return {BlockHash(int(root, 16)): model.decode() for root, model in found.items()}

    async def rows(self) -> list[SurveyRow]:
        """Rows of all workers, by name."""
        trees, found = await self.trees(), dict[tuple[BlockHash, str], SurveyRow]()
        for root, model in trees.items():
            for worker, published in (
                await Browser(self._client, self._options.prefix, root).workers()
            ).items():
                if published.slots:
                    found[root, worker] = SurveyRow(
                        worker, model, root, published=published, stream=published.state
                    )
        for base in sorted(await _of(self._client.smembers(workers_key(self._options.prefix)))):
            root, worker = self._read_base(base.decode())
            row = found.setdefault((root, worker), SurveyRow(worker, trees.get(root, ""), root))
            row.keys = WorkerKeys.under(base.decode())
        for row in found.values():
            await self._fill(row)
        return sorted(
            (row for row in found.values() if row.published or row.log_bytes or row.holder),
            key=lambda row: (row.root, row.worker),
        )

    def _read_base(self, base: str) -> tuple[BlockHash, WorkerId]:
        namespace, _, worker = base.removeprefix(f"{self._options.prefix}:").partition(":")
        return BlockHash(int(namespace.partition(".")[0], 16)), WorkerId(worker.strip("{}"))

    async def _fill(self, row: SurveyRow) -> None:
        if row.keys:
            lease = (await _of(self._client.get(row.keys.lease)) or b"").decode()
            fence, _, row.holder = lease.partition(":")
            row.epoch = int(fence or await _of(self._client.get(row.keys.fence)) or 0)
            for key in (row.keys.log, row.keys.snapshot):
                row.log_bytes += await _of(self._client.memory_usage(key)) or 0
        if row.published:
            await self._count(row, row.published)
        elif row.keys and row.log_bytes:
            await self._inherit(row, row.keys)

    async def _count(self, row: SurveyRow, published: PublishedWorker) -> None:
        """Count a worker's blocks in the tree, edge by edge; inconsistencies are faults."""
        browser = Browser(self._client, self._options.prefix, row.root)
        row.blocks = set()
        for slot in await browser.visible(published.slots):
            try:
                async for edge in browser.edges(slot):
                    held = edge.held.get(slot, 0)
                    blocks = {block for i, block in enumerate(edge.blocks) if held >> i & 1}
                    if not blocks:
                        row.faults.append(f"edge {edge.head:016x} does not list this worker")
                    if blocks & row.blocks:
                        row.faults.append(f"blocks of edge {edge.head:016x} are in another edge too")
                    row.blocks |= blocks
                    row.num_edges += 1
                    row.num_bytes += edge.num_bytes / max(1, len(edge.held))
                    self.shared[edge.head, len(edge.blocks)] += bool(blocks)
            except ValueError as exc:
                row.faults.append(str(exc))

    async def _inherit(self, row: SurveyRow, keys: WorkerKeys) -> None:
        """Read a worker's log as a gateway that takes over would."""
        size = int(keys.base.removeprefix(f"{self._options.prefix}:").partition(":")[0].partition(".")[2])
        parts = await _of(self._client.lrange(keys.snapshot, 0, -1))
        log = [(each.epoch, each.data) async for each in self._log(keys)]
        if (heritage := restore(row.root, size, parts, log)) is None:
            row.faults.append("snapshot and log are incomplete, or being written")
            return
        row.blocks, row.stream = set(heritage.inventory.blocks()), heritage.status.state

    async def _log(self, keys: WorkerKeys) -> AsyncIterator[Any]:
        after = START
        while True:
            batches: Any = await self._client.xrange(keys.log, f"({after}", "+", count=READ_AT_ONCE)
            for each in map(entry, batches):
                after = each.id
                yield each
            if len(batches) < READ_AT_ONCE:
                return

    # drop --------------------------------------------------------------------------------------

    async def drop_worker(self, name: str) -> int:
        """Drop a worker. Returns the number of its edges. Raises ConfigError for an unknown one."""
        rows = [row for row in await self.rows() if row.worker == name]
        if not rows:
            raise ConfigError(f"no worker in Redis is named '{name}'; `kvgate index show` names the workers")
        for row in rows:
            if row.published:
                await self._forget(row.root, row.published.slots)
                await _of(self._client.hdel(tree_key(self._options.prefix, row.root) + b"o", row.worker))
            if row.keys:
                await self._unlink(row.keys.all())
                await _of(self._client.srem(workers_key(self._options.prefix), row.keys.base))
        return sum(row.num_edges for row in rows)

    async def _forget(self, root: BlockHash, slots: Sequence[int]) -> None:
        """Remove slots from lookups; the next gateway that looks sweeps their edges."""
        key = tree_key(self._options.prefix, root)
        packed = [slot.to_bytes(2, "little") for slot in slots]
        await _of(self._client.hdel(key + b"s", *packed))
        await _of(self._client.sadd(key + b"d", *packed))

    async def drop_all(self) -> int:
        """Drop all keys under the prefix that are listed, of any version. Returns their number. Unlisted keys
        of another version stay, and do no harm."""
        prefix, num = self._options.prefix, 0
        for root in await _of(self._client.hkeys(trees_key(prefix))):
            num += await self._drop_tree(f"{prefix}:{{{root.decode()}}}:".encode())
        for base in await _of(self._client.smembers(workers_key(prefix))):
            num += await self._unlink(WorkerKeys.under(base.decode()).all())
        last = (trees_key(prefix), workers_key(prefix), schema_key(prefix))
        return num + await self._unlink([name.encode() for name in last])

    async def _drop_tree(self, key: bytes) -> int:
        num = 0
        slots = {*await _of(self._client.hkeys(key + b"s")), *await _of(self._client.smembers(key + b"d"))}
        for slot in slots:
            heads = await _of(self._client.smembers(key + b"w" + slot))
            num += await self._unlink([key + b"e" + head for head in heads])
        names = [key + b"w" + slot for slot in slots]
        return num + await self._unlink([*names, *(key + name for name in (b"s", b"o", b"d", b"n", b"a"))])

    async def _unlink(self, keys: Sequence[bytes]) -> int:
        num = 0
        for first in range(0, len(keys), AT_ONCE):
            num += await _of(self._client.unlink(*keys[first : first + AT_ONCE]))
        return num


def table(rows: Sequence[SurveyRow]) -> Iterator[str]:
    """Table of rows, for people; the size of blocks is that of the worker's part of the tree."""
    heads = ("worker", "stream", "blocks", "edges", "bytes", "log bytes", "epoch", "holder")
    lines = [heads, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _cells(row: SurveyRow) -> tuple[str, ...]:
    return (
        row.worker,
        row.stream.value if row.stream else "-",
        "-" if row.blocks is None else str(len(row.blocks)),
        str(row.num_edges) if row.published else "-",
        str(round(row.num_bytes)) if row.published else "-",
        str(row.log_bytes),
        str(row.epoch or (row.published.fence if row.published else 0)),
        row.holder or "none",
    )


async def _of(answer: "Awaitable[Any] | Any") -> Any:
    return await answer
