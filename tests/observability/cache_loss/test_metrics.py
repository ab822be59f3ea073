from gateway.observability.cache_loss.metrics import LossCollector
from tests.support.worlds.cache_loss import CacheLossWorld

PROMPT = list(range(200))


def test_every_cause_is_shown_from_the_start_and_all_add_up() -> None:
    world = CacheLossWorld()
    world.ask(PROMPT)
    world.evict(PROMPT)
    world.ask(PROMPT)
    world.answer(world.send(PROMPT, size=None), [], 0)
    collector = LossCollector(world.losses)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
    }
    causes = {
        key[1]: value for key, value in samples.items() if key[0] == "kvgate_recomputed_prompt_tokens_total"
    }
    assert causes == {
        "evicted": 192,
        "routed_away": 0,
        "worker_restarted": 0,
        "other_salt": 0,
        "other_adapter": 0,
        "tokenizer_drift": 0,
        "broken_prefix": 0,
    }
    assert samples[("kvgate_new_prompt_tokens_total",)] == 208
    assert samples[("kvgate_unattributed_prompt_tokens_total", "unknown_prompt")] == 200
    assert samples[("kvgate_unattributed_prompt_tokens_total", "dropped")] == 0
    assert samples[("kvgate_computed_prompt_tokens_total",)] == 600
    assert samples[("kvgate_avoided_queue_tokens_total",)] == 0
