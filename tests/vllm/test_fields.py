"""Request fields and headers of the installed vLLM: each must have a judgement.

Judgements of fields are in `gateway/requests/field_judgement.py`, steering headers in
`gateway/http/headers.py`.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest

from gateway.http.headers import STEERING
from gateway.requests.field_judgement import judgement_of

pytestmark = pytest.mark.vllm

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
LIST = """
import importlib, inspect, json, pathlib
import vllm.entrypoints
from pydantic import BaseModel
root = pathlib.Path(vllm.entrypoints.__path__[0])
found, sources = {}, []
for path in sorted(root.rglob("*.py")):
    sources += __import__("re").findall(r"headers\\.get\\(\\s*([^,)]+)", path.read_text())
    if path.name != "protocol.py":
        continue
    name = ".".join(("vllm.entrypoints", *path.relative_to(root).with_suffix("").parts))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as exc:  # an optional dependency: its routes are missing too
        found["missing:" + name] = [str(exc.name)]
        continue
    for each in vars(module).values():
        if inspect.isclass(each) and issubclass(each, BaseModel) and each.__module__ == name:
            fields = {n for n in each.model_fields}
            for field in each.model_fields.values():
                alias = field.validation_alias
                fields |= {a for a in (field.alias, alias) if isinstance(a, str)}
                fields |= {c for c in getattr(alias, "choices", ()) if isinstance(c, str)}
            found[f"{name}:{each.__name__}"] = sorted(fields)
names = {}
for path in root.rglob("*.py"):
    names |= dict(__import__("re").findall(r'^([A-Z_]+) = "([A-Za-z-]+)"$', path.read_text(), 8))
headers = sorted({names.get(s.strip(), s.strip().strip(chr(34))) for s in sources})
print("RESULT" + json.dumps({"classes": found, "headers": headers}))
"""
REQUEST = re.compile(r"Request(?:\w*Mixin)?$|Mixin$")
HARMLESS_HEADERS = {
    "authorization", "content-type", "endpoint-load-metrics-format", "metrics_format", "x-session-id",
    "x-request-id",
}  # fmt: skip
"""Headers that change the client's own request only: labels in KV events, the form of its answer."""


@pytest.fixture(scope="module")
def engine_fields() -> dict[str, dict[str, list[str]]]:
    done = subprocess.run([PYTHON, "-c", LIST], capture_output=True, text=True, check=True)
    found: dict[str, dict[str, list[str]]] = json.loads(done.stdout.rpartition("RESULT")[2])
    return found


def test_every_request_field_of_the_engine_is_judged(engine_fields: dict[str, dict[str, list[str]]]) -> None:
    requests = {name: fields for name, fields in engine_fields["classes"].items() if REQUEST.search(name)}
    for known in ("ChatCompletionRequest", "CompletionRequest", "ResponsesRequest", "TranscriptionRequest"):
        assert any(name.endswith(":" + known) for name in requests), f"where is {known} now?"
    assert len(requests) > 25
    unjudged = {
        name: [field for field in fields if judgement_of(field) is None] for name, fields in requests.items()
    }
    assert {name: fields for name, fields in unjudged.items() if fields} == {}


def test_every_header_that_the_engine_reads_is_judged(engine_fields: dict[str, dict[str, list[str]]]) -> None:
    headers = {name.lower() for name in engine_fields["headers"]}
    assert {"x-data-parallel-rank", "x-vllm-priority"} <= headers
    assert headers - HARMLESS_HEADERS <= {name.decode() for name in STEERING}
