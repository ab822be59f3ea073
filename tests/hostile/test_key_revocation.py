"""Revoked keys: the command says "confirmed" only where the gateway knows it, and a gateway that cannot read
its key file any more says so and makes no changes for keys that may be revoked."""

import asyncio
import asyncio.subprocess
import os
from pathlib import Path

import pytest

from loadtest.fleet import GATEWAY
from tests.support.blackbox.bench import Bench, running
from tests.support.blackbox.http1_bytes import Header, completion, post
from tests.support.blackbox.scripted_worker import FakeWorker
from tests.support.gateway_process import clean_environment
from tests.support.patience import until


async def kvgate(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Run a command; returns its output and its errors."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *GATEWAY, *arguments, stdout=pipe, stderr=pipe, env=clean_environment()
    )
    out, err = await process.communicate()
    assert process.returncode == code, (process.returncode, out, err)
    return out.decode(), err.decode()


async def made(*flags: str) -> tuple[str, str]:
    """Key and its line."""
    out, err = await kvgate("key", "new", "--tenant", "acme", *flags)
    return err.split()[-1], out


def bearer(key: str) -> Header:
    return b"Authorization", f"Bearer {key}".encode()


async def status(bench: Bench, key: str) -> int:
    return (await bench.ask(post(completion(), bearer(key)))).status


async def joined(bench: Bench, root: str) -> str:
    """URL of a worker that joins a gateway which asks for a key."""
    worker = await FakeWorker().start()
    bench.workers.append(worker)
    headers = (bearer(root), (b"Content-Type", b"application/json"))
    body = f'{{"url":"{worker.url}"}}'.encode()
    assert (await bench.gateway.admin("POST", "/admin/workers", body, *headers)).status == 201
    await until(lambda: bench.gateway.is_up(worker), "the worker joined")
    return worker.url


def url_of(bench: Bench) -> str:
    return f"http://127.0.0.1:{bench.gateway.admin_port}"


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_confirmed_revocation_holds_in_every_process_at_once(tmp_path: Path, processes: int) -> None:
    file = tmp_path / "keys.jsonl"
    (key, line), (other, other_line) = await made(), await made()
    file.write_text(line + other_line)
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
    before = file.stat()
    async with running("--key-file", str(file), "--processes", str(processes)) as bench:
        await bench.worker()
        assert {await status(bench, key) for _ in "1234"} == {200}
        flags = ("--key-file", str(file), "--admin-url", url_of(bench))
        out, err = await kvgate("key", "revoke", key[4:16], *flags)
        assert "confirmed, the key is revoked there" in out and not err
        assert {await status(bench, key) for _ in "1234"} == {401}
        assert await status(bench, other) == 200
    after = file.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_gateway_that_cannot_read_its_keys_confirms_and_changes_nothing(
    tmp_path: Path, processes: int
) -> None:
    file, link = tmp_path / "keys.jsonl", tmp_path / "as-the-gateway-sees-it"
    (key, line), (root, root_line) = await made(), await made("--admin")
    file.write_text(line + root_line)
    link.symlink_to(file)
    admin = tmp_path / "root"
    admin.write_text(root)
    flags = ("--key-file", str(link), "--admin-auth", "changes", "--processes", str(processes))
    async with running(*flags) as bench:
        worker = await joined(bench, root)
        assert await status(bench, key) == 200
        link.unlink()
        await bench.gateway.logged("cannot be used .*: one that was revoked since then still works")
        revoke = ("key", "revoke", key[4:16], "--key-file", str(file), "--admin-key-file", str(admin))
        out, err = await kvgate(*revoke, "--admin-url", url_of(bench), "--wait-s", "0", code=1)
        assert "NOT confirmed" in err and "cannot be read: No such file" in err and "confirmed" not in out
        assert await status(bench, key) == 200, "it is served with the keys that it has"
        changing = ("DELETE", f"/admin/workers/{worker}", None, bearer(root))

        async def is_refused() -> bool:
            return (await bench.gateway.admin(*changing)).status == 503

        await until(is_refused, "a change is refused")
        refused = await bench.gateway.admin(*changing)
        assert refused.error["code"] == "outdated_keys" and "No such file" in refused.error["message"]
        read = await bench.gateway.admin("GET", "/admin/workers")
        assert read.status == 200 and read.json["endpoints"]
        unknown = await bench.gateway.admin("DELETE", f"/admin/workers/{worker}", None, bearer("kvg-x"))
        assert unknown.status == 401
        out, _ = await kvgate("status", "--gateway", url_of(bench), code=1)
        assert f"keys of {link} are " in out and "revoked ones still work" in out
        (described,) = (await bench.gateway.admin("GET", "/admin/keys")).json["files"]
        assert "cannot be read" in described["error"] and described["age_s"] > 0
        assert await bench.gateway.total("kvgate_key_file_age_seconds") > 0
        link.symlink_to(file)

        async def is_revoked() -> bool:
            return await status(bench, key) == 401

        await until(is_revoked, "the file is read again, without a change of it")

        async def is_changed() -> bool:
            return (await bench.gateway.admin(*changing)).status == 200

        await until(is_changed, "changes are possible again")
        await bench.gateway.logged("usable again after")

        async def is_used_by_all() -> bool:
            (described,) = (await bench.gateway.admin("GET", "/admin/keys")).json["files"]
            return described["error"] is None

        await until(is_used_by_all, "each process uses the file again")
        faults = [line for line in bench.gateway.log if "cannot be used" in line]
        assert len(faults) == processes + (processes > 1), "once in each process, and in the supervisor"
        bench.gateway.expected += faults
