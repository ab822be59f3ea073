"""Odd texts are the same for a seed, of all sorts, and Unicode."""

from loadtest.odd_texts import odd_texts


def test_texts_are_the_same_for_a_seed() -> None:
    assert odd_texts(200) == odd_texts(200) != odd_texts(200, seed=14)
    assert len(odd_texts(7)) == 7


def test_texts_are_unicode_of_all_sorts() -> None:
    text = "".join(odd_texts(400))
    assert text.encode() and all(each in text for each in ("漢", "٣", "\x00", "👩\u200d", "<s>", "\u3000"))
