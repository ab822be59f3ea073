from pathlib import Path

import pytest

from gateway.config.secrets import read_key, response_ids, worker_headers
from gateway.core.errors import ConfigError
from gateway.core.worker import WorkerId


def test_a_key_is_read_without_the_line_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret-1\n")
    assert read_key(str(tmp_path / "key"), "--token-file") == "secret-1"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"two\nlines", "schlüssel".encode(), b"\xff"])
def test_an_invalid_key_file_is_rejected_without_showing_its_content(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="--token-file: .*key (cannot be read|holds no key)") as caught:
        read_key(str(path), "--token-file")
    assert "lines" not in str(caught.value)


def test_the_key_of_workers_is_read_from_its_file(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-1\n")
    assert worker_headers(str(key)) == {"authorization": "Bearer sk-1"}
    assert worker_headers("") == {}


@pytest.mark.parametrize("content", [None, b"", b"\n", b"a\nb", b"\xff"])
def test_an_invalid_worker_key_file_is_rejected_without_showing_its_content(
    tmp_path: Path, content: bytes | None
) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^worker_key_file: .*key (cannot be read|holds no key)$"):
        worker_headers(str(key))


def test_response_ids_are_keyed_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("long secret " * 20)
    worker = WorkerId("w:1")
    assert response_ids(str(file)).name(worker) == response_ids(str(file)).name(worker)
    assert response_ids(str(file)).name(worker) != response_ids("").name(worker)
    with pytest.raises(ConfigError, match="response_key_file"):
        response_ids(str(tmp_path / "none"))
