"""Where tokenizers are found, and the errors where they are not."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.app import bundled_tokenizer
from gateway.models.hub import Hub, TokenizerNotFound
from tests.support.model_hub import COMMIT, FakeHub, running, use


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Model with weights beside the tokenizer, which must not be downloaded."""
    path = tmp_path / "repository"
    shutil.copytree(bundled_tokenizer(), path)
    (path / "model.safetensors").write_bytes(b"weights")
    return path


@pytest.fixture
def model_files() -> Iterator[Hub]:
    model_files = Hub()
    yield model_files
    model_files.close()


def reason(model_files: Hub, name: str) -> str:
    with pytest.raises(TokenizerNotFound) as caught:
        model_files.find(name)
    return str(caught.value)


def test_a_directory_is_used_as_it_is(
    model_files: Hub, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model_files.find(str(repository)).directory == repository
    monkeypatch.chdir(repository.parent)
    assert model_files.find("repository").directory == Path("repository")


def test_an_invalid_directory_has_its_reason(model_files: Hub, tmp_path: Path) -> None:
    assert reason(model_files, str(tmp_path)) == f"{tmp_path} has no tokenizer.json"
    assert reason(model_files, "/nowhere/at/all") == "/nowhere/at/all is not a directory"
    assert reason(model_files, "../up/and/away") == "../up/and/away is not a directory"


def test_an_unwritable_cache_is_read(
    model_files: Hub, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cache of another user, mounted read-only: with a reference to main, nothing is fetched and nothing
    written."""
    cache = tmp_path / "hub"
    use(monkeypatch, cache)
    there = cache / "models--org--name"
    shutil.copytree(repository, there / "snapshots" / COMMIT)
    (there / "refs").mkdir()
    (there / "refs" / "main").write_text(COMMIT)
    before = sorted(cache.rglob("*"))
    for path in [cache, *before]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        found = model_files.find("org/name")
    finally:
        for path in [cache, *before]:
            path.chmod(0o755)
    assert found.directory == there / "snapshots" / COMMIT
    assert found.how == f"the cache in {cache}"
    assert sorted(cache.rglob("*")) == before


def test_offline_or_without_the_hub_the_error_has_the_reason(
    model_files: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, tmp_path)
    where = f"org/name is not in the cache in {tmp_path}, and the hub is not used"
    assert reason(model_files, "org/name") == f"{where}: the environment is set to offline"
    assert reason(Hub(uses_hub=False), "org/name") == f"{where}: hub = false in [tokenizer]"


@pytest.mark.process
def test_the_hub_provides_a_tokenizer_once_and_no_weights(
    model_files: Hub, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(FakeHub({"org/name": repository})) as hub:
        use(monkeypatch, tmp_path / "hub", hub.url)
        found = model_files.find("org/name")
        assert found.how == f"{hub.url}, kept in {tmp_path / 'hub'}"
        kept = {path.name for path in found.directory.iterdir()}
        assert {"tokenizer.json", "tokenizer_config.json"} <= kept
        assert "model.safetensors" not in kept
        asked = len(hub.asked)
        assert model_files.find("org/name").directory == found.directory
        assert len(hub.asked) == asked


@pytest.mark.process
def test_downloads_for_an_unwritable_cache_are_kept_until_the_gateway_ends(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_files = Hub()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # also for root, who may write anywhere
    with running(FakeHub({"org/name": repository})) as hub:
        use(monkeypatch, tmp_path / "hub", hub.url)
        found = model_files.find("org/name")
    assert (found.directory / "tokenizer.json").is_file()
    assert not (tmp_path / "hub").exists()
    model_files.close()
    assert not found.directory.exists()


@pytest.mark.process
def test_a_gated_model_requires_its_token(
    model_files: Hub, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(FakeHub({"org/name": repository}, token="hf_secret")) as hub:
        use(monkeypatch, tmp_path / "hub", hub.url)
        assert "HF_TOKEN" in reason(model_files, "org/name")
        use(monkeypatch, tmp_path / "hub", hub.url, token="hf_secret")
        assert (model_files.find("org/name").directory / "tokenizer.json").is_file()


@pytest.mark.process
def test_a_model_missing_on_the_hub_has_its_reason(
    model_files: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    with running(FakeHub({"org/weights": weights})) as hub:
        use(monkeypatch, tmp_path / "hub", hub.url)
        assert reason(model_files, "org/name") == f"{hub.url}: org/name not found, or no access"
        assert reason(model_files, "org/weights") == f"org/weights on {hub.url} has no tokenizer.json"
        asked = len(hub.asked)
        assert "nor an ORG/NAME on the hub" in reason(model_files, "internal-name")
        assert len(hub.asked) == asked


@pytest.mark.process
def test_an_unreachable_hub_is_tried_again_later(
    model_files: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(FakeHub({})) as hub:
        pass
    use(monkeypatch, tmp_path / "hub", hub.url)
    with pytest.raises(TokenizerNotFound) as caught:
        model_files.find("org/name")
    assert caught.value.is_passing
    assert f"{hub.url}: fetching org/name failed" in str(caught.value)
