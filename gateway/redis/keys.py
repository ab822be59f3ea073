"""Names of all Redis keys of kvgate.

    {prefix}:schema                              version of all this
    {prefix}:workers                             the bases below, without the last part, for listing
                                                 and dropping: no walk of the keyspace
    {prefix}:trees                               root ─► model, of trees (`index/redis_tree/tree.py`)
    {prefix}:{model}.{block size}:{worker}:...   one worker's, in one slot of a Cluster
    {prefix}:{database}:bookings                 a channel, not a key; channels are common to all databases
    {prefix}:{lock}:...                          the distributed lock of `--booking atomic`

Two fleets with one prefix and different models, or one worker that comes back with another, are kept apart by
the model's root hash. Gateways name a worker by the host and port of its URL: all must have the same one.
"""

from dataclasses import dataclass

from gateway.core.blocks import BlockHash
from gateway.core.worker import WorkerId

SCHEMA = b"kvgate:1"
"""Schema version of all keys below; any other is rejected."""


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


def lock_keys(prefix: str) -> tuple[str, str]:
    """Return the keys of the distributed lock: its holder, and the number of acquisitions."""
    return f"{prefix}:{{lock}}:holder", f"{prefix}:{{lock}}:number"


@dataclass(frozen=True, slots=True)
class WorkerKeys:
    """Keys of one worker.

    lease     the leader: a fence, and the gateway's id; expires
    fence     the highest fence that was given out
    log       batches and states, a Redis stream
    snapshot  its parts, a list; `draft`: the next one, being written
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
