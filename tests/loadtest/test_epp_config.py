"""The shipped configuration with other ports."""

from loadtest.epp_config import envoy_config


def test_ports_are_replaced_and_a_failing_picker_shows() -> None:
    text = envoy_config(18_080, 19_002, [18_001, 18_009])
    for port in (18_080, 19_002, 18_001, 18_009):
        assert text.count(f"port_value: {port}") == 1
    for shipped in ("8080", "9002", "8001", "8003"):
        assert f"port_value: {shipped}" not in text
    assert "failure_mode_allow: false" in text and "ExternalProcessor" in text


def test_plain_envoy_has_no_picker() -> None:
    text = envoy_config(18_080, 0, [18_001])
    assert "envoy.filters.http.ext_proc" not in text and "envoy.filters.http.router" in text
