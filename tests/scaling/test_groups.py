"""Groups of workers, and the names of requests."""

from gateway.core.worker import Role, ServedModel, Worker, WorkerId
from gateway.scaling.groups import MAX_NAMES, GroupKey, ModelNames, key_of

LLAMA = Worker(
    WorkerId("a:1"),
    "http://a:1",
    (
        ServedModel("lora", "/models/llama", adapter="lora"),
        ServedModel("llama", "/models/llama"),
        ServedModel("llama-chat", "/models/llama"),
    ),
    role=Role.DECODE,
)


def test_group_is_the_first_name_that_is_no_adapter_and_the_role() -> None:
    assert key_of(LLAMA) == GroupKey("llama", Role.DECODE)
    assert key_of(Worker(WorkerId("b:1"), "http://b:1", ())) is None


def test_every_name_of_a_worker_is_its_group_s() -> None:
    names = ModelNames()
    names.learn(LLAMA, GroupKey("llama", Role.DECODE))
    assert {names.find(name, {}) for name in ("lora", "llama", "llama-chat")} == {"llama"}
    assert names.find("gpt", {"gpt": "llama-chat"}) == "llama"
    assert names.find("unknown", {}) is None


def test_asked_name_stands_for_itself_until_a_worker_serves_it() -> None:
    names = ModelNames()
    names.ask("lora")
    names.ask("gpt")
    assert names.find("lora", {}) == "lora"
    names.learn(LLAMA, GroupKey("llama", Role.DECODE))
    assert names.find("lora", {}) == names.find("gpt", {"gpt": "llama"}) == "llama"


def test_names_are_bounded() -> None:
    names = ModelNames()
    for number in range(MAX_NAMES + 1):
        names.ask(f"m{number}")
    assert names.find("m0", {}) == "m0"
    assert names.find(f"m{MAX_NAMES}", {}) is None


def test_configured_names_are_models_while_they_are_configured() -> None:
    names = ModelNames()
    names.configured = frozenset({"llama"})
    assert names.find("llama", {}) == "llama" and names.find("other", {}) is None
    names.configured = frozenset()
    assert names.find("llama", {}) is None
