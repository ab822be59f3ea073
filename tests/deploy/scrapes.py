"""Names of metrics: on a gateway's page, and in queries."""

import http.client
import json
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from tests.support.gateway_process import GatewayProcess
from tests.support.patience import patience

_NAME = re.compile(r"\b(?:kvgate|process)_[a-z0-9_]+")


def ask(gateway: GatewayProcess, *, stream: bool, model: str = "m") -> None:
    client = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=patience(30))
    try:
        body = {"model": model, "prompt": "a b c " * 40, "max_tokens": 4, "stream": stream}
        client.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        client.getresponse().read()
    finally:
        client.close()


def scrape(gateway: GatewayProcess) -> set[str]:
    """Names of all series, after a little traffic."""
    for stream in (True, False):
        ask(gateway, stream=stream)
    ask(gateway, stream=False, model="none")
    page = gateway.metrics()
    names = set(_NAME.findall("\n".join(line for line in page.splitlines() if line[:1] != "#")))
    # A counter of events that have not happened has a type, and no sample yet.
    return names | {f"{line.split()[2]}" for line in page.splitlines() if line.startswith("# TYPE")}


def asked_for(queries: Iterable[str]) -> set[str]:
    return {name for query in queries for name in _NAME.findall(re.sub(r'"[^"]*"', "", query))}
