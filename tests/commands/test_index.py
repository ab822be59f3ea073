from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gateway import cli
from gateway.commands.index import run
from gateway.config import replaced
from gateway.core.blocks import BlockHash
from gateway.core.errors import ConfigError
from loadtest.ports import free_port
from tests.support.redis_servers import Server, redis_server, server
from tests.support.shared_tree import PATH, ROOT, A, path_hashes, reported

__all__ = ["redis_server", "server"]


async def index(server: Server, *arguments: str) -> int:
    flags = ("--redis", server.url) if server else ()
    return await run(cli._parser().parse_args(["index", *arguments, *flags]), server.config())


@asynccontextmanager
async def gateway(blocks: list[BlockHash]) -> AsyncIterator[str]:
    """Admin API with one worker's blocks."""

    async def blocks_of(request: web.Request) -> web.Response:
        if request.match_info["worker"] != A:
            return web.json_response({"error": {"message": "no worker"}}, status=404)
        return web.Response(text="".join(f"{block}\n" for block in blocks))

    app = web.Application()
    app.add_routes([web.get("/admin/index/{worker}/blocks", blocks_of)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", free_port())
    await site.start()
    try:
        yield site.name
    finally:
        await runner.cleanup()


async def test_show_and_top_print_workers_and_blocks(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await index(server, "show") == 0
    assert capsys.readouterr().out == "no workers in Redis\n"
    async with reported(server):
        assert await index(server, "show") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"model model-m, root {ROOT:016x}"
        assert [line.split()[0] for line in lines[1:]] == ["worker", "a:1", "b:1", "c:1"]
        assert await index(server, "top", "--num", "1") == 0
        _, largest, run_ = capsys.readouterr().out.splitlines()
        assert largest.startswith("a:1 ")
        assert run_ == f"run {path_hashes(PATH)[0]:016x}: 40 blocks, at 2 workers"


async def test_verify_counts_again_and_compares(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    async with reported(server):
        assert await index(server, "verify") == 0
        assert "a:1: 40 blocks, consistent" in capsys.readouterr().out
        async with gateway(path_hashes(PATH)) as url:
            assert await index(server, "verify", "a:1", "--gateway", url) == 0
        async with gateway(path_hashes([*PATH[:30], 8])) as url:
            assert await index(server, "verify", "a:1", "--gateway", url) == 1
            assert capsys.readouterr().out.splitlines()[-1] == (
                "a:1: 1 blocks of the gateway are missing in Redis, 10 are only in Redis"
            )
            assert await index(server, "verify", "b:1", "--gateway", url) == 1
            assert "answers 404" in capsys.readouterr().out
        with pytest.raises(ConfigError, match="cannot connect: Connection refused"):
            await index(server, "verify", "a:1", "--gateway", url)
        with pytest.raises(ConfigError, match="no worker in Redis is named 'z:1'"):
            await index(server, "verify", "z:1")


async def test_drop_forgets_a_worker(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    async with reported(server):
        assert await index(server, "drop", "a:1") == 0
        assert "dropped a:1, in 1 edges" in capsys.readouterr().out
    for arguments in ((), ("a:1", "--all")):
        with pytest.raises(ConfigError, match="name a worker, or give --all"):
            await index(server, "drop", *arguments)
    assert await index(server, "drop", "--all") == 0
    assert server.names() == set()


async def test_an_unreachable_index_is_a_one_line_error(server: Server) -> None:
    arguments = cli._parser().parse_args(["index", "show"])
    config = server.config()
    for redis, words in (("", "give --redis"), ("redis://127.0.0.1:1", "Connection refused|127.0.0.1:1")):
        changed = replaced(config, redis=redis)
        with pytest.raises(ConfigError, match=words):
            await run(arguments, changed)
    server.ask("SET", "kvgate:schema", "kvgate:9")
    with pytest.raises(ConfigError, match="is 'kvgate:9'.*kvgate index drop --all"):
        await index(server, "show")


def test_the_command_has_the_options_of_redis_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["index", "show", "--help"])
    printed = capsys.readouterr().out
    assert "--redis-prefix" in printed and "--worker" not in printed
    assert cli.main(["index", "show"]) == 2
    assert "kvgate: index: give --redis" in capsys.readouterr().err
