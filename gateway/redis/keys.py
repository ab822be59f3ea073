"""How all that is ours in Redis is named.

    {prefix}:schema                              which version of all this
    {prefix}:workers                             the bases below, without the last part: who wants to see
                                                 or drop all looks here, nobody walks the keyspace
    {prefix}:trees                               root ─► model, of trees (`index/redis_tree/tree.py`)
    {prefix}:{model}.{block size}:{worker}:...   one worker's, in one slot of a Cluster
    {prefix}:{database}:bookings                 no key but a channel, for which databases are one
    {prefix}:{turn}:...                          who decides, with `--booking atomic`

Two fleets with one prefix and different models, or one worker that comes back with another, are kept apart
by the model's root hash. A worker is named as gateways name it, by the host and port of its URL: all must
be given the same one.
"""

from dataclasses import dataclass

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId

SCHEMA = b"kvgate:1"
"""Of all keys below; another one is refused."""


def schema_key(prefix: str) -> str:
    return f"{prefix}:schema"


def workers_key(prefix: str) -> str:
    return f"{prefix}:workers"


def trees_key(prefix: str) -> str:
    return f"{prefix}:trees"


def namespace(prefix: str, root: BlockHash, block_size: int) -> str:
    return f"{prefix}:{root:016x}.{block_size}"


def bookings_channel(prefix: str, database: int) -> str:
    return f"{prefix}:{database}:bookings"


def turn_keys(prefix: str) -> tuple[str, str]:
    """Who decides now, and how many turns there were."""
    return f"{prefix}:{{turn}}:holder", f"{prefix}:{{turn}}:number"


@dataclass(frozen=True, slots=True)
class WorkerKeys:
    """lease     who writes: a fence, and the gateway's id; expires
    fence     the highest fence that was given out
    log       batches and states, a Redis stream
    snapshot  its parts, a list; `draft`: the next one, on its way
    """

    lease: str
    fence: str
    log: str
    snapshot: str
    draft: str

    @classmethod
    def of(cls, prefix: str, root: BlockHash, block_size: int, worker: WorkerId) -> "WorkerKeys":
        return cls.under(f"{namespace(prefix, root, block_size)}:{{{worker}}}")

    @classmethod
    def under(cls, base: str) -> "WorkerKeys":
        return cls(*(f"{base}:{name}" for name in cls.__slots__))

    def all(self) -> list[bytes]:
        return [getattr(self, name).encode() for name in self.__slots__]

    @property
    def base(self) -> str:
        return self.lease.removesuffix(":lease")
