"""Which prefill worker can hand a prompt to which decode worker, and how near they are.

Reported properties must agree: KV is copied as bytes, and a misfit is refused by the engine in the middle of
a request, or is silently wrong. Properties that one of the two does not report are ignored.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from gateway.core.worker import Role, Worker, WorkerId


class PairKind(NamedTuple):
    """Properties in which a prefill and a decode worker must agree; one kind has one set of partners."""

    model: str
    engine: str
    version: str | None
    connector: str
    block_size: int | None
    cache_dtype: str | None
    tensor_parallel: int | None


def kind_of(worker: Worker) -> PairKind | None:
    """The kind of a worker; None if its cache is never transferred."""
    transfer = worker.transfer
    if transfer is None or not worker.served:
        return None
    return PairKind(
        worker.served[0].root,
        worker.engine,
        worker.version,
        transfer.connector,
        worker.block_size,
        transfer.cache_dtype,
        transfer.tensor_parallel,
    )


@lru_cache(4096)
def misfit(prefill: PairKind, decode: PairKind) -> str:
    """Why the two are no pair; empty where they are. Heads are split between tensor-parallel ranks, so that
    one side's ranks must divide the other's."""
    for name, one, other in zip(_NAMES, prefill, decode, strict=True):
        if name and one is not None and other is not None and one != other:
            return f"{name} differ: {one}, {other}"
    one, other = prefill.tensor_parallel, decode.tensor_parallel
    if one and other and max(one, other) % min(one, other):
        return f"tensor-parallel sizes do not divide: {one}, {other}"
    return ""


_NAMES: Final = ("models", "engines", "engine versions", "connectors", "block sizes", "cache types", "")


def are_pair(prefill: Worker, decode: Worker) -> bool:
    """True if `prefill` may compute prompts for `decode`, by the properties that they report."""
    if prefill.role is Role.DECODE or decode.role is Role.PREFILL or prefill.url == decode.url:
        return False
    one, other = kind_of(prefill), kind_of(decode)
    return one is not None and other is not None and not misfit(one, other)


def misfits(workers: Iterable[Worker]) -> Iterator[tuple[WorkerId, WorkerId, str]]:
    """Prefill and decode workers of one model that are no pair, and why."""
    kinds = [(worker, kind) for worker in workers if (kind := kind_of(worker))]
    for prefill, one in kinds:
        for decode, other in kinds if prefill.role is Role.PREFILL else ():
            if decode.role is Role.DECODE and one.model == other.model and (why := misfit(one, other)):
                yield prefill.id, decode.id, why


def nearness(one: str, other: str) -> int:
    """Leading parts of two topology labels that are the same: 2 for "rack2/host7" and "rack2/host7"."""
    num = 0
    for a, b in zip(_parts(one), _parts(other), strict=False):
        if a != b:
            break
        num += 1
    return num


def _parts(label: str) -> Sequence[str]:
    return label.split("/") if label else ()


class HasKind(Protocol):
    @property
    def kind(self) -> PairKind | None: ...


def partners_of(decodes: Sequence[HasKind], prefills: Sequence[HasKind]) -> list[Sequence[int]]:
    """Return for each decode worker the positions of the prefill workers that fit it; decode workers of one
    kind share an object."""
    if not prefills:
        return []
    by_kind: dict[PairKind | None, list[int]] = {}
    for position, prefill in enumerate(prefills):
        by_kind.setdefault(prefill.kind, []).append(position)
    found: dict[PairKind | None, Sequence[int]] = {None: ()}
    for decode in decodes:
        kind = decode.kind
        if kind is not None and kind not in found:
            found[kind] = [
                i for other, there in by_kind.items() if other and not misfit(other, kind) for i in there
            ]
    return [found[decode.kind] for decode in decodes]
