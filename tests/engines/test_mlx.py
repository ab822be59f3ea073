"""MLX's server: recognized by its list of models, which have no owner."""

from engines import ENGINES
from engines.mlx import Mlx
from gateway.core.engine import ModelInfo
from gateway.discovery.engine_detection import Engines

MODELS = b'{"object": "list", "data": [{"id": "/models/tiny", "object": "model", "created": 1795477190}]}'


def test_it_is_recognized_by_models_without_an_owner() -> None:
    engines = Engines(ENGINES)
    assert engines.by_models(MODELS) is ENGINES["mlx"]
    assert engines.by_models(MODELS.replace(b'"created"', b'"owned_by": "me", "created"')) is None
    assert engines.by_models(MODELS.replace(b'"created"', b'"owned_by": null, "created"')) is None
    assert engines.by_models(b'{"data": [{"id": "m"}]}') is None
    assert engines.by_models(b'{"data": []}') is None


def test_it_takes_one_text_and_is_never_asked_for_names_that_it_does_not_list() -> None:
    assert not Mlx.takes_lists and Mlx.loads_by_name
    assert Mlx().parse_models(MODELS) == (ModelInfo("/models/tiny"),)
