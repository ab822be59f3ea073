import pytest

from gateway.core.errors import ConfigError
from gateway.http.networks import Networks, Reachable, Trusted, address, network


@pytest.mark.parametrize("text", ["10.0.0.1/8", "everywhere", "", "10.0.0.0/33"])
def test_an_invalid_network_is_rejected_with_the_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"give a network or an address, as in 10\.0\.0\.0/8"):
        network(text)


@pytest.mark.parametrize(
    ("text", "is_in"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.0.0.1", False),
        ("fd00::7", True),
        ("fe80::1%eth0", False),
        ("nonsense", False),
    ],
)
def test_a_network_contains_its_addresses(text: str, is_in: bool) -> None:
    assert Networks(["10.0.0.0/8", "fd00::/8"]).has(text) is is_in


def test_an_empty_list_of_networks_contains_no_address() -> None:
    assert not Networks([])
    assert not Networks([]).has("10.0.0.1")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("169.254.169.254", "credentials"),
        ("::ffff:169.254.169.254", "credentials"),
        ("fd00:ec2::254", "credentials"),
        ("169.254.1.1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("0.0.0.0", "not a host's"),
        ("::", "not a host's"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("engines", "is not an address"),
    ],
)
@pytest.mark.parametrize("networks", [(), ("0.0.0.0/0", "::/0")])
def test_special_addresses_are_rejected_for_workers(text: str, why: str, networks: tuple[str, ...]) -> None:
    refusal = Reachable(networks).refusal(text)
    assert refusal is not None
    assert why in refusal


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "10.0.0.1", "192.168.1.1", "8.8.8.8", "::1", "fd00::1", "2001:db8::1"]
)
def test_other_addresses_are_allowed_by_default(text: str) -> None:
    assert Reachable().refusal(text) is None


def test_configured_networks_are_the_only_ones_allowed() -> None:
    reachable = Reachable(["10.0.0.0/8"])
    assert reachable.refusal("10.1.2.3") is None
    assert reachable.refusal("127.0.0.1") == "127.0.0.1 is in none of --worker-networks"
    assert reachable.refusal("::1") == "::1 is in none of --worker-networks"


def test_a_special_address_is_allowed_if_exactly_its_network_is_configured() -> None:
    reachable = Reachable(["169.254.8.0/24", "fe80::/16"])
    assert reachable.refusal("169.254.8.1") is None
    assert reachable.refusal("fe80::1") is None
    assert reachable.refusal("169.254.169.254") is not None


def test_an_ipv4_address_mapped_to_ipv6_is_the_same() -> None:
    assert address("::ffff:10.0.0.1") == address("10.0.0.1")


def test_trusted_peers_are_networks_or_a_unix_socket() -> None:
    trusted = Trusted(["10.0.0.0/8", "unix"], "--x")
    assert [trusted.trusts(peer) for peer in ("10.0.0.1", "11.0.0.1", "", None)] == [True, False, True, False]
    assert (bool(trusted), bool(Trusted([], "--x")), Trusted([], "--x").trusts("")) == (True, False, False)
    with pytest.raises(ConfigError, match="--x: .*give a network or an address, as in 10.0.0.0/8, or 'unix'"):
        Trusted(["all"], "--x")
