"""With a real server and users of it who may do more or less."""

from collections.abc import Callable, Iterator

import pytest

from gateway.app import Gateway
from gateway.bookings.acl_check import advice, refusals
from gateway.redis.options import RedisOptions
from loadtest.ports import free_port
from tests.redis.serving import Server, redis_server, server
from tests.support.gateway_process import GatewayProcess

__all__ = ["redis_server", "server"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

ALL = ("~kvgate:*", "&kvgate:*", "+@all", "-@dangerous", "+info")

Url = Callable[..., str]


@pytest.fixture
def narrow(server: Server) -> Iterator[Url]:
    """The URL for a user who has all that the documentation names, and then the rules that a test gives."""

    def url(*rules: str) -> str:
        server.ask("ACL", "SETUSER", "narrow", "reset", "on", ">secret", "resetchannels", *ALL, *rules)
        return f"redis://narrow:secret@127.0.0.1:{server.port}"

    yield url
    server.ask("ACL", "DELUSER", "narrow")


def options(server: Server, url: str) -> RedisOptions:
    return server.options(redis=url)


@pytest.mark.parametrize("is_atomic", [False, True])
async def test_what_the_documentation_names_is_enough_and_nothing_is_done(
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
async def test_what_is_missing_is_what_gives_it(
    server: Server, narrow: Url, rules: list[str], shared: list[str], atomic: list[str]
) -> None:
    url = narrow(*rules)
    for is_atomic, missing in ((False, shared), (True, atomic)):
        assert list(await refusals(options(server, url), is_atomic=is_atomic)) == missing
    url = narrow(*rules, *atomic)
    assert await refusals(options(server, url), is_atomic=True) == {}


async def test_the_advice_is_a_line_to_copy(server: Server, narrow: Url) -> None:
    found = options(server, narrow("resetchannels"))
    told = advice(found, await refusals(found, is_atomic=False))
    assert "user 'narrow' lacks permissions for bookings (" in told and "channel" in told
    assert "ACL SETUSER narrow &kvgate:*; or " in told and "secret" not in told


async def print_check(server: Server, **changes: str) -> bool:
    gateway = Gateway(server.config(index="memory", **changes))
    assert gateway.bookings
    try:
        return await gateway.bookings.print_check()
    finally:
        gateway.close_context()


async def test_what_cannot_be_tried_is_said_and_is_no_fault(
    server: Server, narrow: Url, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await print_check(server, redis=narrow("-multi"))
    assert "not checked: " in capsys.readouterr().out


async def test_a_server_that_is_not_there_or_refuses_is_told(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not await print_check(server, redis=f"redis://127.0.0.1:{free_port()}")
    assert "is not reached: " in capsys.readouterr().out
    assert not await print_check(server, redis=f"redis://nobody:wr0ng@127.0.0.1:{server.port}")
    assert "rejects the password or user" in capsys.readouterr().out


def test_check_names_the_rule(server: Server, narrow: Url) -> None:
    url = narrow("resetkeys", "~kvgate:schema")
    assert "usable, with prefix kvgate:" in GatewayProcess.check("--redis", url)
    with pytest.raises(AssertionError, match=r"ACL SETUSER narrow ~kvgate:\*;"):
        GatewayProcess.check("--redis", url, "--booking", "atomic")
