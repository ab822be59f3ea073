"""Mistakes of every part are found without a worker."""

from gateway.app.validation import mistakes_of
from gateway.config import config_of


def test_a_valid_configuration_has_no_mistakes() -> None:
    assert mistakes_of(config_of(worker=["http://127.0.0.1:1"], redis="embedded")) == []


def test_all_mistakes_are_found_at_once() -> None:
    config = config_of(
        worker=["10.0.0.1:8000"],
        engine=["vlm"],
        connector=["nxl"],
        policy="expectd_ttft",
        index="redis",
        key_file="/none/such",
        admin_host="0.0.0.0",
        admin_auth="off",
    )
    found = mistakes_of(config)
    for words in (
        "worker: '10.0.0.1:8000' is not an http(s) URL",
        "engine: unknown engine 'vlm'; did you mean vllm?",
        "connector: unknown connector 'nxl'; did you mean nixl?",
        "policy: there is no policy 'expectd_ttft'; did you mean expected_ttft?",
        "index: redis needs --redis",
        "/none/such",
        "admin_auth: off opens the admin API",
    ):
        assert [mistake for mistake in found if words in mistake], (words, found)
    assert len(found) == len(set(found))


def test_the_external_scaler_needs_one_process() -> None:
    (mistake,) = mistakes_of(config_of(worker=["http://127.0.0.1:1"], scaling_port=9004, processes=2))
    assert mistake.startswith("scaling_port: the external scaler needs processes = 1")
