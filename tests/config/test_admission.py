"""Options of admission control, as they are written in a file."""

from pathlib import Path

import pytest

from gateway.config import config_of, load
from gateway.config.tenant_limits import TenantLimits
from gateway.core.errors import ConfigError


def test_by_default_no_request_queues_no_tenant_is_limited_and_no_header_is_trusted() -> None:
    config = config_of()
    assert (config.queue.above_ttft_s, config.queue.above_in_flight) == (0.0, 0)
    assert config.tenants == {} and config.headers.trust_headers_from == []


def test_tenants_are_tables(tmp_path: Path) -> None:
    path = tmp_path / "kvgate.toml"
    path.write_text('[tenants.acme]\nrequests_per_s = 5\nweight = 2.5\n[tenants."*"]\nmax_concurrent = 3\n')
    assert load({}, {}, path).tenants == {
        "acme": TenantLimits(requests_per_s=5, weight=2.5),
        "*": TenantLimits(max_concurrent=3),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tenants.a]\nrequests_per_m = 5", ["requests_per_m"]),
        ("[tenants.a]\nweight = 0", ["weight", "0.001"]),
        ("[tenants.a]\ntokens_per_min = 1.5", ["tokens_per_min", "`int`"]),
        ("tenants = 5", ["tenants", "`object`"]),
        ("[headers]\ntenant_header = 'a b'", ["tenant_header"]),
        (
            "[headers]\ntrust_headers_from = ['10.0.0.1/8']",
            ["trust_headers_from", "10.0.0.1/8 has host bits set"],
        ),
        ("[headers]\ntrust_headers_from = ['unix', 'here']", ["trust_headers_from", "'here'"]),
    ],
)
def test_a_wrong_value_is_rejected_with_its_position(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "kvgate.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load({}, {}, path)
    assert [word for word in words if word not in str(caught.value)] == []
