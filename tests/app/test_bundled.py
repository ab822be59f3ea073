"""What the composition root reads before anything is opened."""

import logging
import subprocess
import sys

import pytest

from gateway.app import bundled_tokenizer
from gateway.metrics import Metrics
from gateway.prompts import PromptSource, load_tokenizers, log_templates


def test_the_log_tells_which_encoder_and_rendering_is_in_use_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "kvgate"):
        loaded = load_tokenizers([f"m={bundled_tokenizer()}"])
        log_templates(PromptSource(loaded, Metrics()))
    tokenizer, template = caplog.messages
    assert tokenizer.startswith("tokenizer of m: fastokens (agrees with tokenizers on ")
    assert template.startswith("chat template of m, default: incremental rendering (proved in 2 settings")


@pytest.mark.process
def test_what_is_loaded_where_it_is_asked_for_is_not_loaded_before() -> None:
    """A gateway without Redis and agents starts without their libraries."""
    code = "import sys, gateway.app; print(sorted({'redis', 'hiredis', 'grpc', 'zmq'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['zmq']"
