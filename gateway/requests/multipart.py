"""Forms with files (RFC 7578), as far as routing reads them: the body itself is passed on unchanged, but for
its model, which is that of the query where the form names none, and for names of the request.

Whatever two parsers could read differently is refused: a worker must not see another model than we did. The
libraries `python-multipart` and `multipart` would replace `_parts` only: their readers of headers resolve
repeated parameters and escapes silently, and they give no positions in the body.
"""

import re
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import msgspec

from gateway.core.errors import InvalidRequest
from gateway.core.request import MODEL, InferenceRequest
from gateway.core.route_table import RouteKind
from gateway.core.windowed_search import find
from gateway.http.messages import HttpRequest
from gateway.requests.field_judgement import GUARDED, NAMES, XARGS
from gateway.requests.model_alias import renamed
from gateway.requests.model_name import decide
from gateway.requests.parsing import PLAIN, BodyRules
from gateway.requests.steering import check_adapter, check_letters, is_adapter, is_removed, value_of

MARK = b"--"
"""Each such body begins so, and no JSON does."""
MAX_PARTS = 1000
"""Starlette's bound, which vLLM and SGLang have."""
MAX_HEAD_BYTES = 8 << 10
MAX_KIND_BYTES, MAX_PARAMS = 1024, 16
"""Bounds of a Content-Type, and of a part's Content-Disposition: a boundary has 70 bytes, a part two
parameters."""
MAX_XARGS_CHARS = 64 << 10
"""Bound of `vllm_xargs`, as in a large body of JSON: each of its names is judged."""
MAX_VALUE_BYTES = 1 << 20
"""Bound of a field that is no file; Starlette's too."""

_FORM = re.compile(
    rb'multipart/form-data((?:\s*;\s*[A-Za-z0-9_-]+=(?:"[^"\\]{1,200}"|[^\s;"]{1,200}))*)\s*;?', re.I
)
_KIND_PARAM = re.compile(rb';\s*([A-Za-z0-9_-]+)=(?:"([^"]*)"|([^\s;"]+))')
_CHARSETS = (b"utf-8", b"utf8", b"us-ascii")
"""In others a name or a value would mean something else to an engine than to us."""
_DISPOSITION = re.compile(rb"content-disposition\s*:\s*form-data\s*", re.I)
_PARAM = re.compile(rb';\s*([A-Za-z*-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"\s]+))\s*')
_ENCODING = re.compile(
    rb"(?:\A|\r\n)content-transfer-encoding\s*:(?!\s*(?:7bit|8bit|binary)\s*(?:\Z|\r\n))", re.I
)


_FORM_KINDS = (b"multipart/", b"application/x-www-form-urlencoded")


class FormPart(NamedTuple):
    """A part of a form: its value is the body from `value_at` to `end`, its delimiter begins at `begin`."""

    name: str
    is_file: bool
    begin: int
    value_at: int
    end: int


def form_kind(http: HttpRequest) -> bytes | None:
    """The Content-Type of a form. Raises InvalidRequest for two of them."""
    kinds = [value for name, value in http.headers if name == b"content-type"]
    if len(kinds) > 1:
        raise _broken("it has several Content-Type headers")
    return kinds[0] if kinds else None


def check_no_form(http: HttpRequest) -> None:
    """Check that an engine cannot read a JSON body as a form, on a route that takes both. Raises
    InvalidRequest."""
    for name, value in http.headers:
        if name == b"content-type" and value.strip().lower().startswith(_FORM_KINDS):
            raise InvalidRequest(
                "this route accepts no forms; send JSON with 'Content-Type: application/json'"
            )


def parse_form(
    path: str, body: bytes, content_type: bytes | None, rules: BodyRules = PLAIN
) -> InferenceRequest:
    """Parse a form, which goes on as it came but for names of the request: other fields that steer an engine
    are refused, not removed. It has no place for a salt."""
    fields: dict[str, Any] = {**form_fields(body, content_type)}
    xargs = _xargs(fields.get(XARGS, "{}"))
    if not NAMES.isdisjoint(fields):
        body = _without(body, NAMES)
        fields = {name: value for name, value in fields.items() if name not in NAMES}
    for name in (*fields, *xargs):
        if is_removed(name, rules.keeps_transfer):
            raise InvalidRequest(f"clients may not set '{name}'; leave it out of the form", param=name)
        if rules.models is not None and is_adapter(name):
            value = fields[name] if name in fields else value_of(name, xargs[name])
            check_adapter(name, value, rules.models)
    check_letters(xargs)
    if decide(fields, rules.model, rules.default, is_limited=rules.is_limited):
        body = renamed_form(body, fields[MODEL])
    top = {"model": fields["model"], "stream": fields.get("stream", "").lower() in ("true", "1", "on", "yes")}
    return InferenceRequest(RouteKind.PASS, path, body, top, fields=fields)


def _without(body: bytes, names: Container[str]) -> bytes:
    """The same form without these fields; every other part as it came."""
    kept, at = [], 0
    for part in _parts(body, body[: body.index(b"\r\n")]):
        if part.name in names:
            kept.append(body[at : part.begin])
            at = part.end + 2
    return b"".join((*kept, body[at:]))


def renamed_form(body: bytes, model: str) -> bytes:
    """The same form with this model; every other part as it came. The body has been parsed before."""
    delimiter = body[: body.index(b"\r\n")]
    head = delimiter + b'\r\nContent-Disposition: form-data; name="model"\r\n\r\n'
    for part in _parts(body, delimiter):
        if part.name == MODEL:
            body = body[: part.begin] + body[part.end + 2 :]
            break
    return head + model.encode() + b"\r\n" + body


def renamed_body(body: bytes, model: str) -> bytes:
    """The same body, a form or JSON, with this model."""
    return renamed_form(body, model) if body[:2] == MARK else renamed(body, model)


def _xargs(text: str) -> dict[str, msgspec.Raw]:
    if len(text) > MAX_XARGS_CHARS:
        raise InvalidRequest(f"'{XARGS}' is longer than {MAX_XARGS_CHARS} characters", param=XARGS)
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidRequest(f"'{XARGS}' is not a JSON object", param=XARGS) from exc


def form_fields(body: bytes, content_type: bytes | None) -> dict[str, str]:
    """Names and values, without the files. Raises InvalidRequest."""
    delimiter = MARK + _boundary(content_type or b"")
    if not body.startswith(delimiter):
        raise _broken("it does not start with its boundary")
    fields: dict[str, str] = {}
    for part in _parts(body, delimiter):
        check_letters([part.name])
        if part.name in GUARDED and (part.is_file or part.name in fields):
            raise InvalidRequest(
                f"'{part.name}' must be sent once, as a field and not as a file", param=part.name
            )
        if not part.is_file:
            _add(fields, part.name, body[part.value_at : min(part.end, part.value_at + 1 + MAX_VALUE_BYTES)])
    return fields


def _boundary(content_type: bytes) -> bytes:
    if len(content_type) > MAX_KIND_BYTES:
        raise _broken(f"its Content-Type is over {MAX_KIND_BYTES} bytes")
    found = _FORM.fullmatch(content_type.strip())
    params: dict[bytes, bytes] = {}
    for name, quoted, plain in _KIND_PARAM.findall(found[1]) if found else ():
        if params.setdefault(name.lower(), quoted or plain) is not (quoted or plain):
            raise _broken("its Content-Type repeats a parameter")
    if not params.get(b"boundary"):
        raise _broken("its Content-Type is not multipart/form-data with a boundary")
    if params.get(b"charset", b"utf-8").lower() not in _CHARSETS:
        raise _broken("the charset of its Content-Type is not utf-8")
    return params[b"boundary"]


def _parts(body: bytes, delimiter: bytes) -> Iterator[FormPart]:
    """Split a form into its parts. Raises InvalidRequest."""
    begin, at = 0, len(delimiter)
    for _ in range(MAX_PARTS):
        if body[at : at + 2] == MARK:
            return
        head_end = body.find(b"\r\n\r\n", at, at + MAX_HEAD_BYTES)
        end = find(body, b"\r\n" + delimiter, head_end + 4) if head_end >= 0 else -1
        if body[at : at + 2] != b"\r\n" or end < 0:
            raise _broken("a part has no headers, or is not closed by the boundary")
        name, is_file = _name(body[at + 2 : head_end])
        yield FormPart(name, is_file, begin, head_end + 4, end)
        begin = end + 2
        at = begin + len(delimiter)
    raise _broken(f"it has over {MAX_PARTS} parts")


def _name(head: bytes) -> tuple[str, bool]:
    """A part's name, and whether it is a file."""
    lines = [line for line in head.split(b"\r\n") if line[:19].lower() == b"content-disposition"]
    if len(lines) != 1 or not (begin := _DISPOSITION.match(lines[0])):
        raise _broken("a part has no 'Content-Disposition: form-data'")
    if b"\r\n " in head or b"\r\n\t" in head or b"\n" in head.replace(b"\r\n", b""):
        raise _broken("a header of a part continues on a second line")
    at, params = begin.end(), dict[bytes, bytes]()
    while at < len(lines[0]):
        param = _PARAM.match(lines[0], at)
        key = param[1].lower() if param else b""
        if param is None or key in params or len(params) >= MAX_PARAMS:
            raise _broken("a part's Content-Disposition cannot be read")
        params[key] = param[2] if param[2] is not None else param[3]
        at = param.end()
    if not params.get(b"name") or b"name*" in params:
        raise _broken("a part has no name")
    if b"\\" in params[b"name"]:
        raise _broken("a part's name has an escape, which parsers read differently")
    is_file = b"filename" in params or b"filename*" in params
    if not is_file and _ENCODING.search(head):
        raise _broken("a field has a Content-Transfer-Encoding")
    return _text(params[b"name"]), is_file


def _add(fields: dict[str, str], name: str, value: bytes) -> None:
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidRequest(f"a field is over {MAX_VALUE_BYTES} bytes", param=name)
    fields[name] = _text(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as exc:
        raise _broken("a name or field is not UTF-8") from exc


def _broken(why: str) -> InvalidRequest:
    return InvalidRequest(f"the form cannot be read: {why}")
