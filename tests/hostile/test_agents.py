"""Hostile servers in place of a worker's agent, which send anything over gRPC."""

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

from gateway.app import bundled_tokenizer
from gateway.proto.kvgate.v1 import kv_events_pb2 as pb
from tests.support.blackbox.lying_agents import ROOT, Liar, Say, serving_agent, update
from tests.support.blackbox.siege import ESCAPES, Siege, count, engine, siege
from tests.support.patience import until

NUM_PARTS = count(300, 3000)
BLOCKS_A_PART = 2000
BIG = 2**64 - 1


def run(rng: random.Random, num: int = BLOCKS_A_PART) -> Any:
    """Blocks that were never stored, one behind the other."""
    names, blocks = ([rng.getrandbits(64) for _ in range(num)] for _ in range(2))
    return pb.Change(stored=pb.Stored(blocks=blocks, names=names, parent_block=ROOT, medium="GPU"))


def no_hello(liar: Liar) -> Iterator[bytes]:
    yield update(status=pb.Status(state=pb.Status.EXACT))


def nonsense(liar: Liar) -> Iterator[bytes]:
    yield liar.right()
    yield b"\xff" * 1000


def no_url(liar: Liar) -> Iterator[bytes]:
    hello = pb.Hello()
    hello.CopyFrom(liar.hello)
    hello.engine_url = "http://[" + ESCAPES
    yield update(hello=hello)


def escapes(liar: Liar) -> Iterator[bytes]:
    yield liar.right()
    yield update(status=pb.Status(state=pb.Status.BLIND, reason=ESCAPES * 10_000))


def absurd_numbers(liar: Liar) -> Iterator[bytes]:
    yield liar.right()
    yield update(snapshot=pb.SnapshotPart(epoch=BIG, next_seq=BIG, is_last=True))
    yield update(status=pb.Status(state=pb.Status.EXACT))
    yield update(batch=pb.Batch(epoch=BIG, seq=BIG))
    yield update(sample=pb.Sample(epoch=BIG, next_seq=BIG, num_blocks=BIG, path=[BIG] * 100_000))


def gaps(liar: Liar) -> Iterator[bytes]:
    yield liar.right()
    yield update(snapshot=pb.SnapshotPart(epoch=1, is_last=True))
    for seq in itertools.count(0, 7):
        yield update(batch=pb.Batch(epoch=1, seq=seq))


def giant(liar: Liar) -> Iterator[bytes]:
    yield liar.right()
    yield update(snapshot=pb.SnapshotPart(epoch=1, changes=[run(random.Random(1), 400_000)]))


def without_end(liar: Liar) -> Iterator[bytes]:
    """Snapshot without a last part."""
    rng = random.Random(1)
    yield liar.right()
    for part in range(NUM_PARTS):
        yield update(snapshot=pb.SnapshotPart(epoch=1, part=part, changes=[run(rng)]))


def cleared_without_end(liar: Liar) -> Iterator[bytes]:
    yield liar.right()
    yield update(snapshot=pb.SnapshotPart(epoch=1, is_last=True))
    for seq in range(2000):
        yield update(batch=pb.Batch(epoch=1, seq=seq, changes=[pb.Change(cleared=pb.Cleared())] * 100))


LIES: tuple[Say, ...] = (
    no_hello,
    nonsense,
    no_url,
    escapes,
    absurd_numbers,
    gaps,
    giant,
    without_end,
    cleared_without_end,
)


async def lie(under: Siege, liar: Liar, say: Say) -> None:
    """Add the worker, with its agent, and drop it again."""
    liar.say, asked, url = say, liar.num_asked, liar.hello.engine_url
    joined = await under.gateway.admin("POST", "/admin/workers", json.dumps({"url": url}).encode())
    assert joined.status == 201, joined.body
    await until(lambda: liar.num_asked > asked and liar.has_ended, f"it says {say.__name__}")
    dropped = await under.gateway.admin("DELETE", f"/admin/workers/{url}")
    assert dropped.status == 200, dropped.body
    assert not liar.faults


async def test_requests_are_answered_whatever_an_agent_sends() -> None:
    with engine() as url:
        liar = Liar(url)
        async with serving_agent(liar) as target:
            flags = (
                f"KVGATE_AGENT={url}={target}",
                "--events",
                "auto",
                "--tokenizer",
                str(bundled_tokenizer()),
            )
            async with siege(*flags) as under:
                for say in LIES:
                    try:
                        await under.keep_good(lie(under, liar, say))
                    except AssertionError as exc:
                        raise AssertionError(f"{say.__name__}: {exc}") from exc
                    assert not under.faults(), (say.__name__, under.faults()[:5])
