from gateway.epp.addresses import FRESH_S, Addresses
from gateway.runtime.tasks import Tasks
from tests.support.worlds.endpoint_picks import W1, resolve_as

URL = "http://w:8000"


def test_an_address_is_known_without_a_look_up() -> None:
    addresses = Addresses(resolve_as({}))
    assert addresses.of("http://10.0.0.1:8000") == W1
    assert addresses.of("http://[::1]") == "[::1]:80"
    assert addresses.of(URL) is None and addresses.is_missing(URL, 0.0)
    assert not addresses.is_missing("http://10.0.0.1:8000", 0.0)


async def test_a_name_is_looked_up_and_ipv4_goes_first() -> None:
    addresses = Addresses(resolve_as({"w": "::1 10.0.0.1", "six": "::1"}))
    await addresses.look_up_missing([URL, "https://six", "http://10.0.0.1:8000"], 0.0)
    assert (addresses.of(URL), addresses.of("https://six")) == (W1, "[::1]:443")
    assert not addresses.is_missing(URL, FRESH_S)


async def test_a_failed_look_up_is_repeated_later() -> None:
    addresses = Addresses(resolve_as({}))
    for url in (URL, "http://" + "a" * 70 + ":1", "unix:/run/w.sock"):
        await addresses.look_up(url, 0.0)
        assert addresses.of(url) is None
        assert not addresses.is_missing(url, FRESH_S / 2) and addresses.is_missing(url, FRESH_S)


async def test_a_worker_that_moves_is_found_again_and_stays_where_dns_is_away() -> None:
    names = {"w": "10.0.0.1"}
    addresses, tasks = Addresses(resolve_as(names)), Tasks()

    async def renewed(now: float) -> str | None:
        addresses.renew(URL, tasks, now)
        for task in list(tasks._tasks):
            await task
        return addresses.of(URL)

    assert await renewed(0.0) is None, "it was never asked for"
    await addresses.look_up(URL, 0.0)
    names["w"] = "10.0.0.2"
    assert await renewed(FRESH_S / 2) == W1
    assert await renewed(FRESH_S) == "10.0.0.2:8000"
    names.clear()
    assert await renewed(2 * FRESH_S) == "10.0.0.2:8000"
