"""Forms with files (RFC 7578), as far as routing reads them: the body itself is passed on unchanged.

Whatever two parsers could read differently is refused: a worker must not see another model than we did.
"""

import re
from typing import Any

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import XARGS, InferenceRequest, Kind, check_model, steers, steers_events

MARK = b"--"
"""Each such body begins so, and no JSON does."""
MAX_PARTS = 1000
"""As in Starlette, which vLLM and SGLang stand on."""
MAX_HEAD_BYTES = 8 << 10
MAX_VALUE_BYTES = 1 << 20
"""Of a field that is no file, Starlette's too."""

_BOUNDARY = re.compile(
    rb'multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.I
)
_DISPOSITION = re.compile(rb"content-disposition\s*:\s*form-data\s*", re.I)
_PARAM = re.compile(rb';\s*([A-Za-z*-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"\s]+))\s*')
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def parse_form(
    path: str,
    body: bytes,
    content_type: bytes | None,
    *,
    keeps_transfer: bool = False,
    model: str | None = None,
) -> InferenceRequest:
    """As `parse_request` of a form, which goes on as it is: what steers an engine is not taken out but
    refused."""
    fields: dict[str, Any] = {**form_fields(body, content_type)}
    names = [*fields, *_xargs(fields.get(XARGS, "{}"))]
    for name in filter(steers_events if keeps_transfer else steers, names):
        raise InvalidRequest("it steers the engine, which is not for clients", param=name)
    check_model(fields, model)
    top = {"model": fields["model"], "stream": fields.get("stream", "").lower() in ("true", "1", "on", "yes")}
    return InferenceRequest(Kind.PASS, path, body, top, fields=fields)


def _xargs(text: str) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidRequest(f"'{XARGS}' is not a JSON object", param=XARGS) from exc


def form_fields(body: bytes, content_type: bytes | None) -> dict[str, str]:
    """Names and values, without the files. Raises InvalidRequest."""
    found = _BOUNDARY.match(content_type or b"")
    if found is None:
        raise _broken("its Content-Type is not multipart/form-data with a boundary")
    delimiter = MARK + (found[1] or found[2])
    if not body.startswith(delimiter):
        raise _broken("it does not begin with its boundary")
    fields: dict[str, str] = {}
    at = len(delimiter)
    for _ in range(MAX_PARTS):
        if body[at : at + 2] == MARK:
            return fields
        head_end = body.find(b"\r\n\r\n", at, at + MAX_HEAD_BYTES)
        end = body.find(b"\r\n" + delimiter, head_end + 4) if head_end >= 0 else -1
        if body[at : at + 2] != b"\r\n" or end < 0:
            raise _broken("a part has no head or no end")
        name = _name(body[at + 2 : head_end])
        if name is not None:
            _add(fields, name, body[head_end + 4 : min(end, head_end + 5 + MAX_VALUE_BYTES)])
        at = end + 2 + len(delimiter)
    raise _broken(f"it has over {MAX_PARTS} parts")


def _name(head: bytes) -> str | None:
    """Of a field; None for a file."""
    lines = [line for line in head.split(b"\r\n") if line[:19].lower() == b"content-disposition"]
    if len(lines) != 1 or not (begin := _DISPOSITION.match(lines[0])):
        raise _broken("a part has no Content-Disposition of form-data")
    at, params = begin.end(), {}
    while at < len(lines[0]):
        param = _PARAM.match(lines[0], at)
        key = param[1].lower() if param else b""
        if param is None or key in params:
            raise _broken("a part's Content-Disposition cannot be read")
        params[key] = _ESCAPED.sub(rb"\1", param[2]) if param[2] is not None else param[3]
        at = param.end()
    if b"name" not in params or b"name*" in params:
        raise _broken("a part has no name")
    is_file = b"filename" in params or b"filename*" in params
    return None if is_file else _text(params[b"name"])


def _add(fields: dict[str, str], name: str, value: bytes) -> None:
    if name in fields and name == "model":
        raise InvalidRequest("the form names more than one model", param="model")
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidRequest(f"a field is over {MAX_VALUE_BYTES} bytes", param=name)
    fields[name] = _text(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as exc:
        raise _broken("a name or field is not UTF-8") from exc


def _broken(why: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not a form that can be read: {why}")
