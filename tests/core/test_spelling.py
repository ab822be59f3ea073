import pytest

from gateway.core.spelling import meant


@pytest.mark.parametrize(
    ("given", "known", "prefix", "words"),
    [
        ("expectd_ttft", ["expected_ttft", "random"], "", "; did you mean expected_ttft?"),
        ("best", ["expected_ttft", "random"], "", ""),
        ("--prot", ["--port", "--host"], "--", "; did you mean --port?"),
        ("--zz", ["--port"], "--", ""),
    ],
)
def test_the_nearest_name_is_suggested(given: str, known: list[str], prefix: str, words: str) -> None:
    assert meant(given, known, prefix) == words
