"""Choices of a request: order, progress and usage."""

from array import array

from engines.sim import SimConfig
from engines.sim.job import HttpJob
from engines.sim.params import read
from engines.sim.rank import SimRank
from engines.sim.words import GeneratedText

FAST = SimConfig(decode_tokens_per_s=20_000.0, prefill_tokens_per_s=1e7, kv_blocks=100)
PROMPTS = [array("I", range(40)), array("I", range(100, 120))]


def job(num_choices: int = 1) -> HttpJob:
    answer = GeneratedText(array("I", [1, 2, 3]), [" a", " b", " c"], "length")
    asked = read({"n": num_choices}, ("m",), (), 16)
    return HttpJob(asked, PROMPTS, [answer] * (len(PROMPTS) * num_choices), None)


async def test_every_token_of_every_choice_is_reported_once() -> None:
    rank = SimRank(FAST, 0)
    submitted = job(num_choices=2)
    submitted.submit(lambda: rank)
    reported: list[int] = []
    while not submitted.is_done:
        reported.append((await submitted.wait()).index)
    assert sorted(reported) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [choice.prompt for choice in submitted.choices] == [PROMPTS[0]] * 2 + [PROMPTS[1]] * 2
    usage = submitted.usage(with_details=True)
    assert (usage.prompt, usage.completion, usage.cached) == (60, 12, 0), "of the last prompt's first choice"
    assert submitted.usage(with_details=False).cached is None


async def test_an_abort_reaches_every_choice() -> None:
    rank = SimRank(FAST, 0)
    submitted = job()
    submitted.submit(lambda: rank)
    await submitted.wait()
    submitted.abort()
    assert rank.num_clients == 0
    assert not submitted.is_done
    rank.close()


def test_each_job_has_an_id() -> None:
    assert len(job().request_id) == 16
