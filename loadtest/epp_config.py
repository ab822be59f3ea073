"""The shipped configuration of Envoy with other ports, with or without the picker."""

import re
from collections.abc import Sequence
from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "deploy" / "envoy" / "envoy.yaml"
ENDPOINT = re.compile(
    r"        - endpoint: \{address: \{socket_address: \{address: 127\.0\.0\.1, port_value: 800\d\}\}\}\n"
)
FILTER = re.compile(r"          - name: envoy\.filters\.http\.ext_proc\n.*?(?=          - name: )", re.DOTALL)


def envoy_config(port: int, epp_port: int, worker_ports: Sequence[int]) -> str:
    """Return the configuration; plain where `epp_port` is 0. Raises ValueError where the file has changed."""
    text = SHIPPED.read_text()
    first = ENDPOINT.search(text)
    if first is None or FILTER.search(text) is None:
        raise ValueError(f"{SHIPPED.name} has no endpoints or no ext_proc as expected")
    template = first[0]
    endpoints = "".join(re.sub(r"800\d", str(each), template) for each in worker_ports)
    text = text[: first.start()] + endpoints + ENDPOINT.sub("", text[first.start() :])
    text = text.replace("failure_mode_allow: true", "failure_mode_allow: false")  # a picker that fails shows
    text = text.replace("port_value: 8080", f"port_value: {port}")
    return text.replace("port_value: 9002", f"port_value: {epp_port}") if epp_port else FILTER.sub("", text)
