"""Decide as the gateway does, and send the request without it: `python route.py /models/llama URL [URL ...]`.

The first argument is the folder of the model's tokenizer (tokenizer.json, tokenizer_config.json). The library
follows the caches and the load of the workers and listens on no port.
"""

import asyncio
import sys

import aiohttp

import kvgate

SYSTEM = "You answer in one short sentence. " * 40


async def ask(router: kvgate.Router, session: aiohttp.ClientSession, question: str) -> str:
    """Send a chat to the worker that will answer it soonest. Returns a line about the decision."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"model": "m", "messages": messages, "max_tokens": 8}
    # The decision books the prompt at the worker, so that the next one knows of it.
    decision = router.decide(kvgate.request("/v1/chat/completions", body))
    try:
        async with session.post(f"{decision.worker.url}/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            await answer.json()
    finally:
        router.finish(decision)  # releases the booking, whatever came of the request
    return f"{decision.worker.url}: {decision.overlap_tokens} of {decision.num_tokens} tokens cached"


async def main(tokenizer: str, workers: list[str]) -> None:
    # Options have the names of the flags of `kvgate serve`, as in policy="least_load".
    async with kvgate.connect(workers, tokenizer=[tokenizer]) as router, aiohttp.ClientSession() as session:
        for question in ("What is a prefix?", "What is a cache?", "What is a gateway?"):
            print(await ask(router, session, question), flush=True)
            await asyncio.sleep(0.5)  # the worker reports what it has cached within milliseconds


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
