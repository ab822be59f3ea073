"""Models that may have no workers, and when their requests wait."""

import pytest

from gateway.config import config_of
from gateway.config.scaling import roles_at_zero
from gateway.core.errors import ConfigError
from gateway.core.worker import Role


def test_models_at_zero_have_a_role_or_both() -> None:
    given = ["org/llama", "phi=prefill", "a=b=decode"]
    assert roles_at_zero(given) == [("org/llama", Role.BOTH), ("phi", Role.PREFILL), ("a=b", Role.DECODE)]


@pytest.mark.parametrize("name", ["phi=worker", "=prefill", "phi="])
def test_unknown_role_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="scaling_models"):
        config_of(scaling_models=[name])


def test_requests_wait_with_a_scaler_or_named_models() -> None:
    assert not config_of().scaling.starts_from_zero
    assert config_of(scaling_port=4000).scaling.starts_from_zero
    assert config_of(scaling_models=["m"]).scaling.starts_from_zero
