"""The table of fields, held against the field lists of engines' request classes (tests/data/engines).

A list is read from an engine's sources, as its `source` says. A field in none of the groups fails: say in
`gateway/requests/field_judgement.py` what it does, in the group that fits or in a new one.
"""

from collections import Counter
from pathlib import Path

import pytest

from engines import ENGINES
from gateway.http.headers import STEERING
from gateway.requests.field_judgement import (
    _GROUPS,
    GUARDED,
    JUDGED,
    NAMES,
    UNREMARKABLE,
    XARGS,
    Judgement,
    judgement_of,
)
from tests.support.engine_data import RequestFields, engine_data

LISTS = [(name, fields) for name, data in engine_data().items() for fields in data.request_fields]
each_list = pytest.mark.parametrize(
    "fields", [fields for _, fields in LISTS], ids=[f"{name}-{fields.version}" for name, fields in LISTS]
)
PASSED_HEADERS = {
    "x-smg-routing-key",  # as the field routing_key
    "x-sglext-return-input-ids",  # of the sender's own answer
    "x-sglext-return-output-ids",
    "x-sglext-ids-framed",
}


@each_list
def test_every_field_of_an_engine_is_judged(fields: RequestFields) -> None:
    assert fields.version and fields.source
    names = {name for each in fields.classes.values() for name in each}
    assert len(names) > 15, "list all fields that the engine's request classes have"
    unjudged = sorted(name for name in names if judgement_of(name) is None)
    assert unjudged == [], "each belongs into a group of gateway/requests/field_judgement.py"


@each_list
def test_every_header_that_an_engine_reads_is_judged(fields: RequestFields) -> None:
    assert set(fields.headers) <= {name.decode() for name in STEERING} | PASSED_HEADERS


KEYS = {
    "rid": Judgement.NAME,
    "request_id": Judgement.NAME,
    "session_params": Judgement.REMOVED,
    "session_id": Judgement.REMOVED,
    "id_slot": Judgement.REMOVED,
    "lora_id": Judgement.REMOVED,
    "mm_hashes": Judgement.REMOVED,
    "mm_content_hashes": Judgement.REMOVED,
    "cache_salt": Judgement.READ,
    "previous_response_id": Judgement.READ,
    "extra_key": Judgement.PASSED,
    "prompt_cache_key": Judgement.PASSED,
    "routing_key": Judgement.PASSED,
    "conversation_id": Judgement.PASSED,
    "conversation_params": Judgement.PASSED,
    "agent_hierarchy": Judgement.PASSED,
    "lora_path": Judgement.ADAPTER,
    "lora_name": Judgement.ADAPTER,
    "lora_request": Judgement.ADAPTER,
    "adapters": Judgement.ADAPTER,
    "bootstrap_room": Judgement.TRANSFER,
    "kv_transfer_params": Judgement.TRANSFER,
    "disaggregated_params": Judgement.TRANSFER,
}
"""Values by which an engine looks something up in a table that its clients share."""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "modifications.md"


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_an_engines_table_is_judged_and_explained_to_users(name: str) -> None:
    assert judgement_of(name) is KEYS[name]
    keys = PAGE.read_text().partition("## Keys of an engine's tables")[2].partition("\n## ")[0]
    assert f"`{name}`" in keys


def test_names_of_a_request_are_those_that_are_left_out_of_forms_too() -> None:
    assert {name for name, judgement in JUDGED.items() if judgement is Judgement.NAME} == NAMES


def test_there_are_lists_of_all_kinds_of_engines() -> None:
    """vLLM's fields come from the installed engine (tests/vllm/test_fields.py)."""
    assert {name for name, _ in LISTS} == ENGINES.keys() - {"vllm"}


def test_each_name_is_judged_once_and_each_group_has_a_reason() -> None:
    counts = Counter(name for _, _, names in _GROUPS for name in names.split())
    assert [name for name, num in counts.items() if num > 1] == []
    assert all(reason.strip() and names.split() for _, reason, names in _GROUPS)
    assert all(name == name.casefold() for name in JUDGED)


def test_steering_fields_are_guarded() -> None:
    for name, judgement in JUDGED.items():
        is_free = judgement in (Judgement.READ, Judgement.PASSED) and name != XARGS
        assert (name in UNREMARKABLE) is is_free
        assert (GUARDED.get(name) == name) is (judgement is not Judgement.PASSED)


@pytest.mark.parametrize(
    ("name", "judgement"),
    [
        ("model", Judgement.READ),
        ("ec_transfer_params", Judgement.TRANSFER),
        ("bootstrap_anything", Judgement.TRANSFER),
        ("lora_path", Judgement.ADAPTER),
        ("custom_logit_processor", Judgement.REMOVED),
        ("rid", Judgement.NAME),
        ("request_id", Judgement.NAME),
        ("temperature", Judgement.PASSED),
        ("unknown_field", None),
    ],
)
def test_a_field_has_its_judgement(name: str, judgement: Judgement | None) -> None:
    assert judgement_of(name) is judgement
