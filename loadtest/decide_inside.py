"""Inner process of `bench_decide`: prints the CPU-us of a decision that a program makes itself, with its end.

`python -m loadtest.decide_inside NUM WORKER…`: the library, at the same workers and with the same prompts.
"""

import asyncio
import sys
import time

import kvgate
from gateway.app import bundled_tokenizer
from loadtest.workloads.token_prompts import MODEL, NUM_OPEN, prompts

BATCH = 100
"""Requests that are parsed outside of the measured time."""


async def inside_us(num: int, workers: list[str]) -> float:
    """CPU-us of `decide` and `finish`, with as many decisions open as clients of the service have."""
    asked, spent_s, num_done = prompts(), 0.0, 0
    async with kvgate.connect(workers, tokenizer=[str(bundled_tokenizer())]) as router:
        while num_done < 2 * num:
            bodies = [{"model": MODEL, "prompt": next(asked)} for _ in range(BATCH)]
            requests = [kvgate.request("/v1/completions", body) for body in bodies]
            open_ = [router.decide(kvgate.request("/v1/completions", bodies[0])) for _ in range(NUM_OPEN)]
            begun = time.process_time()
            for request in requests:
                open_.append(router.decide(request))
                router.finish(open_.pop(0))
            if num_done >= num:
                spent_s += time.process_time() - begun
            num_done += BATCH
            for each in open_:
                router.finish(each)
            await asyncio.sleep(0)
    return spent_s / (num_done - num) * 1e6


def main(argv: list[str]) -> int:
    print(asyncio.run(inside_us(int(argv[0]), argv[1:])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
