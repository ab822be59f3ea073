"""A tenant that fills the admission queue: each request of another tenant is still admitted and answered."""

import asyncio
from collections import Counter

from tests.support.blackbox.http1_bytes import CHAT, post
from tests.support.blackbox.siege import Siege, chat, count, siege

NUM_CLIENTS = count(100, 600)
NUM_REQUESTS = count(4, 20)
MAX_QUEUED = 20
FLAGS = (
    *("--queue-above-in-flight", "2", "--queue-max-requests", str(MAX_QUEUED)),
    *("--trust-headers-from", "127.0.0.1"),
)
GREEDY = (b"x-kvgate-tenant", b"greedy")


async def flood(under: Siege, statuses: Counter[int]) -> None:
    """Send far more requests at once than the queue has places, each with the highest priority."""

    async def ask_repeatedly(number: int) -> None:
        for _ in range(NUM_REQUESTS):
            body = chat(f"greedy {number}", max_tokens=100, ignore_eos=True, priority=-1000)
            statuses[(await under.ask(post(body, GREEDY, target=CHAT))).status] += 1

    await asyncio.gather(*(ask_repeatedly(number) for number in range(NUM_CLIENTS)))


async def test_a_tenant_that_fills_the_queue_displaces_no_other() -> None:
    async with siege(*FLAGS) as under:
        statuses: Counter[int] = Counter()
        assert await under.keep_good(flood(under, statuses)) > 1
        assert statuses[429] and statuses[200], statuses
        assert not set(statuses) - {200, 429}, statuses
