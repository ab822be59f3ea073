import pytest

from gateway.config import load
from gateway.config.worker_specs import parse_spec, spec_of, specs_of, with_specs

P, D, W = "http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"


def test_workers_survive_listing_and_parsing() -> None:
    config = load({"worker": [W], "prefill": [P], "decode": [D]}, environ={})
    specs = specs_of(config)
    assert specs == [W, f"prefill={P}", f"decode={D}"]
    assert [spec_of(*parse_spec(spec)) for spec in specs] == specs
    assert with_specs(config, specs) == config
    assert with_specs(config, ["x", "decode=y"]) == load({"worker": ["x"], "decode": ["y"]}, environ={})
    assert with_specs(config, specs[:1]) == load({"worker": [W]}, environ={})
    with pytest.raises(ValueError):
        parse_spec("prefill=x")
