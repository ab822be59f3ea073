"""Single requests that are cheap to send, and that one call would take long for: others are served meanwhile.

Each attack is compared with that call, made here: a gateway that makes it holds up all others as long, in
whatever thread, since such calls keep the interpreter lock. One good try of several is enough, as machines
are shared.
"""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.models.prompt_source import MAX_PROMPTS
from gateway.requests.media_uuid import KEY
from loadtest.hostile_nested import calling, nearly_named, post
from loadtest.open_loop import open_loop
from tests.support.blackbox.http1_bytes import COMPLETIONS
from tests.support.blackbox.http1_bytes import post as request
from tests.support.blackbox.keys import bearer, new_key
from tests.support.blackbox.memory_peaks import LARGE_BODIES, begin_peak, peak_is_small
from tests.support.blackbox.siege import Siege, siege

NUM_TRIES = 10
MB = 1 << 20
FORM = "/v1/audio/transcriptions"


def one_call_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e3)
    return min(times)


async def others_go_on(
    under: Siege, attack: Callable[[str], object], call: Callable[[], object], key: str = ""
) -> None:
    """The latest of others' requests is less late than half of the call takes."""
    url, tries = f"http://127.0.0.1:{under.gateway.port}", list[tuple[float, float]]()

    def attacked() -> float:
        with open_loop(url, "m", key) as others:
            time.sleep(0.1)
            attack(url)
            time.sleep(0.1)
        return max(others.delays_ms)

    for _ in range(NUM_TRIES):
        tries.append((await asyncio.to_thread(attacked), one_call_ms(call) / 2))
        if tries[-1][0] < tries[-1][1]:
            return
    raise AssertionError(tries)


async def test_arguments_of_a_tool_call_are_not_decoded_in_one_call() -> None:
    body = calling("1", 15 * MB, "m")
    arguments = json.loads(body)["messages"][1]["tool_calls"][0]["function"]["arguments"]
    async with siege(*LARGE_BODIES) as under:
        await others_go_on(under, lambda url: post(url, body), lambda: json.loads(arguments))


async def test_arguments_of_a_tool_call_take_little_memory_and_give_it_back() -> None:
    body = calling("{}", 12 * MB, "m")
    async with siege(*LARGE_BODIES) as under:
        url, start = f"http://127.0.0.1:{under.gateway.port}", begin_peak(under.gateway)
        for _ in range(3):
            await asyncio.to_thread(post, url, body)
        await peak_is_small(under.gateway, start, len(body))


async def test_a_salted_body_is_not_searched_in_one_call(tmp_path: Path) -> None:
    key, line = new_key("--tenant", "t")
    keys, salt, body = tmp_path / "keys", tmp_path / "salt", nearly_named(60 * MB, "m")
    keys.write_text(line)
    salt.write_text("s" * 64)
    flags = ("--key-file", str(keys), "--tenant-salt-file", str(salt))
    async with siege(*LARGE_BODIES, *flags, headers=(bearer(key),)) as under:
        await others_go_on(under, lambda url: post(url, body, key), lambda: KEY.search(body), key)


async def test_a_form_is_not_searched_in_one_call() -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n'
    body = head % b"model" + b"m\r\n" + head % b'f"; filename="f' + b"\r\n--" * (15 * MB) + b"\r\n--b--\r\n"
    kind = "multipart/form-data; boundary=b"
    async with siege(*LARGE_BODIES) as under:
        await others_go_on(
            under,
            lambda url: post(url, body, path=FORM, kind=kind),
            lambda: body.find(b"\r\n--b--"),
        )


@pytest.mark.parametrize("each", ["a", [1]])
async def test_very_many_prompts_are_not_looked_up_one_by_one(each: object) -> None:
    prompts = {"model": "m", "max_tokens": 1, "prompt": [each] * (MAX_PROMPTS + 1)}
    async with siege(*LARGE_BODIES) as under:
        await under.ask(request(json.dumps(prompts).encode(), target=COMPLETIONS))
        await under.gateway.logged(r"more than 2,048 prompts\); routed by load only")
