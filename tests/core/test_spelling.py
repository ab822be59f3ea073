import pytest

from gateway.core.spelling import MAX_NAMED, meant, shortened


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


def test_a_message_has_some_of_many_names() -> None:
    assert shortened(("a", "b")) == "a, b"
    assert shortened([str(number) for number in range(MAX_NAMED)]).endswith(f", {MAX_NAMED - 1}")
    assert shortened("x" * (MAX_NAMED + 5)).endswith(", x and 5 more")
