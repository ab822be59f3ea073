"""Tokens that the engine has for a body."""

import json
import urllib.request
from typing import Any

from tests.support.corpus import Body

# Errors that say nothing about the tokens: the prompt is longer than the model, or a flag is missing for
# parsing the answer.
ELSEWHERE = ("maximum context length", "auto-tool-choice", "No token_ids rendered")


def ask(url: str, route: str, body: Body) -> Any | None:
    """The engine's answer, or None where it rejects the body."""
    data = json.dumps({"model": "m", **body}).encode()
    request = urllib.request.Request(url + route, data, {"content-type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        reason = error.read().decode()
        if any(each in reason for each in ELSEWHERE):
            raise LookupError(reason) from error
        return None
