"""Choices of a request: order, progress and usage."""

from array import array

from engines.sim import SimConfig
from engines.sim.job import HttpJob
from engines.sim.params import read
from engines.sim.rank import Rank
from engines.sim.words import GeneratedText

FAST = SimConfig(decode_tokens_per_s=20_000.0, prefill_tokens_per_s=1e7, kv_blocks=100)
PROMPTS = [array("I", range(40)), array("I", range(100, 120))]


def job(num_choices: int = 1) -> HttpJob:
    answer = GeneratedText(array("I", [1, 2, 3]), [" a", " b", " c"], "length")
    asked = read({"n": num_choices}, ("m",), (), 16)
    return HttpJob(asked, PROMPTS, [answer] * (len(PROMPTS) * num_choices), None)


async def test_every_token_of_every_choice_is_reported_once() -> None:
    rank = Rank(FAST, 0)
    one = job(num_choices=2)
    one.submit(lambda: rank)
    reported: list[int] = []
    while not one.is_done:
        reported.append((await one.wait()).index)
    assert sorted(reported) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [choice.prompt for choice in one.choices] == [PROMPTS[0]] * 2 + [PROMPTS[1]] * 2
    usage = one.usage(with_details=True)
    assert (usage.prompt, usage.completion, usage.cached) == (60, 12, 0), "of the last prompt's first choice"
    assert one.usage(with_details=False).cached is None


async def test_an_abort_reaches_every_choice() -> None:
    rank = Rank(FAST, 0)
    one = job()
    one.submit(lambda: rank)
    await one.wait()
    one.abort()
    assert rank.num_clients == 0
    assert not one.is_done
    rank.close()


def test_each_job_has_an_id() -> None:
    assert len(job().request_id) == 16
