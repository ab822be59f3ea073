"""Permission check on a real Redis server, with users of more and fewer rights."""

from collections.abc import Callable, Iterator

import pytest

from gateway.app import Gateway
from gateway.bookings.acl_check import advice, refusals
from gateway.redis.options import RedisOptions
from loadtest.ports import free_port
from tests.support.gateway_process import GatewayProcess
from tests.support.redis_servers import Server, redis_server, server

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

ALL = ("~kvgate:*", "&kvgate:*", "+@all", "-@dangerous", "+info")

Url = Callable[..., str]


@pytest.fixture
def narrow(server: Server) -> Iterator[Url]:
    """URL of a user with the rights that the documentation names, and then the rules that a test gives."""

    def url(*rules: str) -> str:
        server.ask("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "resetchannels", *ALL, *rules)
        return f"redis://narrow:secret@127.0.0.1:{server.port}"

    yield url
    server.ask("ACL", "DELUSER", "narrow")


def options(server: Server, url: str) -> RedisOptions:
    return server.options(redis=url)


@pytest.mark.parametrize("is_atomic", [False, True])
async def test_documented_rights_suffice_and_the_check_writes_nothing(
    server: Server, narrow: Url, is_atomic: bool
) -> None:
    assert await refusals(options(server, narrow()), is_atomic=is_atomic) == {}
    assert server.names() == {"kvgate:schema"}


@pytest.mark.parametrize(
    ("rules", "shared", "atomic"),
    [
        (["resetchannels"], ["&kvgate:*"], ["&kvgate:*"]),
        (["-publish", "-subscribe"], ["+subscribe", "+publish"], ["+subscribe", "+publish"]),
        (["-client|reply"], ["+client|reply"], ["+client|reply"]),
        (["resetkeys", "~kvgate:schema"], [], ["~kvgate:*"]),
        (["-@scripting", "-incr"], [], ["+script|load", "+evalsha", "+eval", "+incr"]),
    ],
)
async def test_a_missing_right_is_named_as_the_rule_that_grants_it(
    server: Server, narrow: Url, rules: list[str], shared: list[str], atomic: list[str]
) -> None:
    url = narrow(*rules)
    for is_atomic, missing in ((False, shared), (True, atomic)):
        assert list(await refusals(options(server, url), is_atomic=is_atomic)) == missing
    url = narrow(*rules, *atomic)
    assert await refusals(options(server, url), is_atomic=True) == {}


async def test_the_advice_is_a_command_to_copy(server: Server, narrow: Url) -> None:
    found = options(server, narrow("resetchannels"))
    line = advice(found, await refusals(found, is_atomic=False))
    assert "user 'narrow' lacks permissions for bookings (" in line and "channel" in line
    assert "ACL SETUSER narrow &kvgate:*; or " in line and "secret" not in line


async def print_check(server: Server, **changes: str) -> bool:
    gateway = Gateway(server.config(index="memory", **changes))
    assert gateway.parts.bookings.bookings
    try:
        return await gateway.parts.bookings.bookings.print_check()
    finally:
        await gateway.stop(0)


async def test_a_right_that_cannot_be_checked_is_printed_and_no_fault(
    server: Server, narrow: Url, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await print_check(server, redis=narrow("-multi"))
    assert "not checked: " in capsys.readouterr().out


async def test_an_unreachable_or_rejecting_server_is_reported(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not await print_check(server, redis=f"redis://127.0.0.1:{free_port()}")
    assert "cannot be reached: " in capsys.readouterr().out
    assert not await print_check(server, redis=f"redis://unknown:wr0ng@127.0.0.1:{server.port}")
    assert "rejects the password or user" in capsys.readouterr().out


def test_check_prints_the_missing_rule(server: Server, narrow: Url) -> None:
    url = narrow("resetkeys", "~kvgate:schema")
    assert "usable, with prefix kvgate:" in GatewayProcess.check("--redis", url)
    with pytest.raises(AssertionError, match=r"ACL SETUSER narrow ~kvgate:\*;"):
        GatewayProcess.check("--redis", url, "--booking", "atomic")
