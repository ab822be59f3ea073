"""Names of tokenizer classes, as data. tests/vllm/test_tokenizer_class.py compares them with transformers."""

from gateway.tokenization.class_names import BY_MODEL_TYPE, HUB_IDS_OF_FILES, REBUILDERS, WRONG_ON_HUB
from gateway.tokenization.tokenizer_class import REBUILT


def test_names_are_whole_words_and_those_rebuilt_are_among_them() -> None:
    names = {*BY_MODEL_TYPE, *BY_MODEL_TYPE.values(), *WRONG_ON_HUB, *REBUILDERS}
    assert len(BY_MODEL_TYPE) > 300
    assert [name for name in names if " " in name or name.strip("-") != name or not name] == []
    assert REBUILT.keys() <= REBUILDERS and "TokenizersBackend" not in REBUILDERS
    assert all(pattern == pattern.lower() for pattern in HUB_IDS_OF_FILES), (
        "ids are compared in small letters"
    )
