"""/metrics: valid for Prometheus, with the names, labels and buckets of a live vLLM."""

from prometheus_client.parser import text_string_to_metric_families

from engines.sim import SimConfig
from engines.sim.metrics import exposition
from engines.sim.rank import SimRank
from engines.vllm import Vllm
from tests import DATA

LIVE = DATA / "vllm_captures" / "metrics_aggregated.txt"
OURS_ONLY = {"vllm:lora_requests_info"}  # the recorded engine ran without adapters


def series(text: str) -> dict[str, set[frozenset[str]]]:
    """Label names by sample name, and the buckets' bounds."""
    found: dict[str, set[frozenset[str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            names = {name if name != "le" else f"le={value}" for name, value in sample.labels.items()}
            found.setdefault(sample.name, set()).add(frozenset(names))
    return found


async def test_names_labels_and_buckets_are_those_of_vllm() -> None:
    config = SimConfig(lora=("a",))
    ours = series(exposition(config, [SimRank(config, 0)], 1.0))
    live = series(LIVE.read_text())
    for name, labels in ours.items():
        if name in OURS_ONLY:
            continue
        if name == "vllm:cache_config_info":
            assert next(iter(labels)) <= next(iter(live[name]))
        else:
            assert labels == live[name], name


async def test_our_adapter_reads_every_rank() -> None:
    config = SimConfig(kv_blocks=77, block_size=32, dp_size=2)
    text = exposition(config, [SimRank(config, 0), SimRank(config, 1)], 12.5)
    found = Vllm().parse_metrics(text)
    assert set(found) == {0, 1}
    assert "process_start_time_seconds 12.5" in text
    assert 'block_size="32"' in text
    assert 'num_gpu_blocks="77"' in text
