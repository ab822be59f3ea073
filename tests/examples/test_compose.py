"""The services of examples/compose: their structure, and the commands that they name, without containers."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from typing import Any

import pytest
import yaml

from loadtest.fleet import GATEWAY, LISTENING, SIM_READY, first_match, running
from tests import ROOT
from tests.support.gateway_process import clean_environment
from tests.support.patience import patience

FILE = ROOT / "examples/compose/compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
IMAGE = (ROOT / "deploy/Containerfile").read_text().rpartition("FROM ")[2]
KNOWN = {"image", "build", "command", "environment", "ports", "healthcheck", "stop_grace_period"}
"""Attributes of a service, of the Compose Specification, that the file uses."""


def variables() -> dict[str, str]:
    """Variables of the gateway's container: of the image, and of the service."""
    env = "\n".join(re.findall(r"^ENV (?:.*\\\n)*.*", IMAGE, re.M))
    return {**dict(re.findall(r"\b(KVGATE_[A-Z_]+)=(\S+)", env)), **SERVICES["gateway"]["environment"]}


def test_services_fit_the_image_and_one_another() -> None:
    assert set(COMPOSE) == {"name", "x-kvgate", "services"}
    assert all(set(service) <= KNOWN for service in SERVICES.values())
    for service in SERVICES.values():
        build = service["build"]
        context = (FILE.parent / build["context"]).resolve()
        assert (context, (context / build["dockerfile"]).is_file()) == (ROOT, True)
    workers = variables()["KVGATE_WORKER"].split(",")
    assert workers == [f"http://{name}:8000" for name in SERVICES if name.startswith("worker-")]
    published = [port.rsplit(":", 2) for port in SERVICES["gateway"]["ports"]]
    exposed = re.findall(r"^EXPOSE (.+)$", IMAGE, re.M)[0].split()
    assert [(host, inside) for host, _, inside in published] == [("127.0.0.1", port) for port in exposed]


@pytest.mark.process
def test_the_commands_of_the_services_answer_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        urls = {}
        for name, service in SERVICES.items():
            if name.startswith("worker-"):  # on loopback, at a free port: later flags override
                command = [*service["command"], "--host", "127.0.0.1", "--port", "0"]
                urls[name] = first_match(stack.enter_context(running(*command)), SIM_READY)[0]
        given = variables()
        for name, url in urls.items():
            given["KVGATE_WORKER"] = given["KVGATE_WORKER"].replace(f"http://{name}:8000", url)
        monkeypatch.setattr("os.environ", {**clean_environment(), **given, "KVGATE_LOG_FORMAT": "text"})
        flags = ("--host", "127.0.0.1", "--port", "0", "--admin-host", "127.0.0.1", "--admin-port", "0")
        gateway_url, admin_url = first_match(stack.enter_context(running("serve", *flags)), LISTENING)
        kind, python, *test = SERVICES["gateway"]["healthcheck"]["test"]
        check = [part.replace("http://127.0.0.1:9400", admin_url) for part in test]
        subprocess.run([sys.executable, *check], check=True, timeout=patience(60))
        assert (kind, python) == ("CMD", "python")
        body = json.dumps({"model": "m", "prompt": "Once upon a time", "max_tokens": 8}).encode()
        headers = {"content-type": "application/json"}
        asked = urllib.request.Request(f"{gateway_url}/v1/completions", body, headers)
        with urllib.request.urlopen(asked, timeout=patience(60)) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 8


@pytest.mark.process
def test_compose_itself_accepts_the_file_where_it_is_there() -> None:
    """Without Docker's plugin the two tests above stand alone."""
    docker = shutil.which("docker")
    command = [docker or "docker", "compose", "-f", str(FILE), "config", "--quiet"]
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0:
        subprocess.run(command, check=True, timeout=patience(60))
    assert GATEWAY[-1] == re.findall(r'^ENTRYPOINT \["(\w+)"\]$', IMAGE, re.M)[0]
