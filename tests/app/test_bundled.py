"""Reads of the composition root, before anything is opened."""

import logging
import subprocess
import sys

import pytest

from gateway.app import bundled_tokenizer
from gateway.config.models import ModelTable
from gateway.core.fleet import Fleet
from gateway.models.catalog import Catalog
from gateway.models.prompt_source import PromptSource
from gateway.observability.metrics import Metrics


def test_the_log_names_the_encoder_and_rendering_in_use_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "kvgate"):
        Catalog(
            PromptSource({}, Metrics()), Fleet(), tables={"m": ModelTable(tokenizer=str(bundled_tokenizer()))}
        )
    tokenizer, template = caplog.messages
    assert tokenizer.startswith(f"tokenizer of {bundled_tokenizer()}: fastokens (agrees with tokenizers on ")
    assert template.startswith(
        f"chat template of {bundled_tokenizer()}, default: incremental rendering (proved in 2 settings"
    )


@pytest.mark.process
def test_optional_libraries_are_loaded_on_demand() -> None:
    """A gateway without Redis and agents starts without their libraries."""
    late = {"redis", "hiredis", "grpc", "huggingface_hub", "zmq"}
    code = f"import sys, gateway.app, gateway.commands.serve; print(sorted({late} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['zmq']"
