from pathlib import Path

import pytest

from gateway.core.errors import ConfigError
from gateway.keyfile import read_key


def test_a_key_is_read_without_the_line_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret-1\n")
    assert read_key(str(tmp_path / "key"), "--token-file") == "secret-1"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"two\nlines", "schlüssel".encode(), b"\xff"])
def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="--token-file: .*key (cannot be read|holds no key)") as caught:
        read_key(str(path), "--token-file")
    assert "lines" not in str(caught.value)
