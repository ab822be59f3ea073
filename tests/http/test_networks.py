import pytest

from gateway.core.errors import ConfigError
from gateway.http.networks import Networks, Reachable, Trusted, address, network


@pytest.mark.parametrize("text", ["10.0.0.1/8", "everywhere", "", "10.0.0.0/33"])
def test_what_is_no_network_is_refused_in_words(text: str) -> None:
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
def test_who_is_in_a_network(text: str, is_in: bool) -> None:
    assert Networks(["10.0.0.0/8", "fd00::/8"]).has(text) is is_in


def test_no_network_has_anybody() -> None:
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
        ("0.0.0.0", "no host's"),
        ("::", "no host's"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("engines", "is no address"),
    ],
)
@pytest.mark.parametrize("networks", [(), ("0.0.0.0/0", "::/0")])
def test_nobodys_addresses_are_no_workers(text: str, why: str, networks: tuple[str, ...]) -> None:
    refusal = Reachable(networks).refusal(text)
    assert refusal is not None
    assert why in refusal


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "10.0.0.1", "192.168.1.1", "8.8.8.8", "::1", "fd00::1", "2001:db8::1"]
)
def test_all_others_are_where_nothing_is_said(text: str) -> None:
    assert Reachable().refusal(text) is None


def test_what_is_said_is_all_that_may_be() -> None:
    reachable = Reachable(["10.0.0.0/8"])
    assert reachable.refusal("10.1.2.3") is None
    assert reachable.refusal("127.0.0.1") == "127.0.0.1 is in none of --worker-networks"
    assert reachable.refusal("::1") == "::1 is in none of --worker-networks"


def test_one_of_nobodys_may_be_if_just_that_is_said() -> None:
    reachable = Reachable(["169.254.8.0/24", "fe80::/16"])
    assert reachable.refusal("169.254.8.1") is None
    assert reachable.refusal("fe80::1") is None
    assert reachable.refusal("169.254.169.254") is not None


def test_an_address_in_both_forms_is_one() -> None:
    assert address("::ffff:10.0.0.1") == address("10.0.0.1")


def test_who_is_trusted_are_networks_or_a_unix_socket() -> None:
    trusted = Trusted(["10.0.0.0/8", "unix"], "--x")
    assert [trusted.trusts(peer) for peer in ("10.0.0.1", "11.0.0.1", "", None)] == [True, False, True, False]
    assert (bool(trusted), bool(Trusted([], "--x")), Trusted([], "--x").trusts("")) == (True, False, False)
    with pytest.raises(ConfigError, match="--x: .*give a network or an address, as in 10.0.0.0/8, or 'unix'"):
        Trusted(["all"], "--x")
