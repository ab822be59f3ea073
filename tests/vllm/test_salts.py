"""Tenants' caches on a real vLLM server: no prompt of one is cached for another."""

from pathlib import Path

import pytest

from tests.support.engine_figures import SALTS, EngineFigures
from tests.support.engine_talk import is_exact
from tests.support.gateway_process import GatewayProcess
from tests.support.tenants import EVERY, NUM_PROBES, cross_tenant_hits, keys_of, salted
from tests.vllm.engine import VllmWorker

pytestmark = pytest.mark.ci


def test_no_probe_of_another_tenant_is_a_hit(
    vllm_worker: VllmWorker, vllm_model: Path, tmp_path: Path, figures: EngineFigures
) -> None:
    tenants, keys = keys_of(tmp_path, "one", "other")
    flags = ("--tokenizer", str(vllm_model), "--expose-headers", *salted(tmp_path), *keys)
    with GatewayProcess("--worker", vllm_worker.url, *flags) as gateway:
        is_exact(gateway)
        found = cross_tenant_hits(gateway, tenants)
    figures.add(SALTS, "vLLM 0.32", found.num_hits, found.num_probes)
    assert (found.num_probes, found.num_hits) == (NUM_PROBES, 0)
    assert found.num_own == found.num_repeats == NUM_PROBES // EVERY, found
    assert found.num_predicted == found.num_probes + found.num_repeats, found
