from pathlib import Path

import pytest

from gateway.tokenization.model_families import renderer_of


@pytest.mark.parametrize(
    ("config", "renderer"),
    [
        ('{"model_type": "gpt_oss"}', "harmony"),
        ('{"model_type": "llama"}', "jinja"),
        ("{}", "jinja"),
        ("[", "jinja"),
        (None, "jinja"),
    ],
)
def test_the_model_type_names_the_renderer(tmp_path: Path, config: str | None, renderer: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert renderer_of(tmp_path) == renderer


def test_a_model_with_mistrals_own_files_has_its_own_renderer(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text("{}")
    assert renderer_of(tmp_path) == "mistral"
