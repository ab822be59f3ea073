"""Forms are read as the engines' own parser reads them, or rejected."""

from string import ascii_lowercase

import pytest

from gateway.core.errors import Forbidden, InvalidRequest, ModelMissing
from gateway.core.route_table import RouteKind
from gateway.http.messages import HttpRequest
from gateway.requests.multipart import (
    MAX_PARTS,
    MAX_VALUE_BYTES,
    MAX_XARGS_CHARS,
    check_no_form,
    form_fields,
    form_kind,
    parse_form,
    renamed_form,
)
from gateway.requests.parsing import BodyRules
from tests.support.blackbox.multipart_forms import KIND, form, part

PATH = "/v1/audio/transcriptions"


AUDIO = part("file", b"\x00\xff--x\r\n--x\r\n", '; filename="a; name=model.wav"\r\nContent-Type: audio/wav')


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (form(AUDIO, part("model", b"m")), KIND),
        (form(part("model", b"m"), AUDIO), b'Multipart/Form-Data; charset=utf-8; boundary="xx"'),
        (form(b"--xx\r\ncontent-disposition:form-data;name=model\r\nX: y\r\n\r\nm\r\n"), KIND),
        (form(part("model", b"m")) + b"an epilogue", KIND),
    ],
    ids=["file first", "file last, quoted boundary", "bare name", "epilogue"],
)
def test_the_model_is_found(body: bytes, kind: bytes) -> None:
    assert form_fields(body, kind) == {"model": "m"}


def test_a_form_makes_a_request() -> None:
    body = form(AUDIO, part("model", b"whisper"), part("stream", b"True"), part("priority", b"7"))
    request = parse_form(PATH, body, KIND)
    assert (request.kind, request.model, request.stream, request.priority) == (
        RouteKind.PASS,
        "whisper",
        True,
        None,
    )
    assert request.body == body
    assert request.fields["priority"] == "7"


def test_an_empty_value_stays_empty() -> None:
    assert form_fields(form(part("language", b""), part("model", b"m")), KIND) == {
        "language": "",
        "model": "m",
    }


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (form(part("model", b"m")), b"application/json"),
        (form(part("model", b"m")), None),
        (form(part("model", b"m")), b"multipart/form-data"),
        (form(part("model", b"m")), b"multipart/form-data; boundary=yy"),
        (part("model", b"m"), KIND),
        (b"--xx\r\n\r\nm\r\n--xx--", KIND),
        (b"--xx\r\nX: y\r\n\r\nm\r\n--xx--", KIND),
        (form(b"--xxy\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n"), KIND),
        (form(part("a", b"1\r\n--xxtra")), KIND),
        (form(b"--xx\r\nContent-Disposition: attachment; name=model\r\n\r\nm\r\n"), KIND),
        (form(part("model", b"m", "; name=other")), KIND),
        (form(part("x", b"m", "; name*=utf-8''model")), KIND),
        (form(part("model", b"m", ' "')), KIND),
        (
            form(part("model", b"m", '\r\nContent-Disposition: form-data; name="other"')),
            KIND,
        ),
        (form(part("model", b"m"), part("model", b"n")), KIND),
        (form(part("model", b"\xff")), KIND),
        (form(part("model", b"m" * (MAX_VALUE_BYTES + 1))), KIND),
        (form(*[part(str(i), b"") for i in range(MAX_PARTS + 1)]), KIND),
        (form(part("model", b"m")), KIND.replace(b";", b"; a=b" * 200 + b";")),
        (form(part("model", b"m", "".join(f"; {letter}=1" for letter in ascii_lowercase))), KIND),
    ],
    ids=[
        "JSON type", "no type", "no boundary", "other boundary", "no end", "no head", "no disposition",
        "longer boundary", "boundary and more", "attachment", "two names", "name*", "open quote",
        "two dispositions", "two models", "not UTF-8", "too long", "too many",
        "long type", "many parameters",
    ],
)  # fmt: skip
def test_an_ambiguous_form_is_rejected(body: bytes, kind: bytes | None) -> None:
    with pytest.raises(InvalidRequest):
        form_fields(body, kind)


@pytest.mark.parametrize(
    "steering",
    [
        part("kv_transfer_params", b"{}"),
        part("bootstrap_host", b"10.0.0.9"),
        part("vllm_xargs", b'{"kv_cache_report_mode":"full"}'),
        part("vllm_xargs", b"[1]"),
        part("vllm_xargs", b'{"a":"%b"}' % (b"a" * MAX_XARGS_CHARS)),
    ],
)
def test_a_field_that_steers_an_engine_is_rejected(steering: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_form(PATH, form(part("model", b"m"), steering), KIND)


def test_names_of_a_request_are_left_out_of_a_form() -> None:
    """An engine would use them as keys; every other part goes on as it came."""
    first, last = part("request_id", b"same"), part("rid", b"same")
    for body in (
        form(first, AUDIO, part("model", b"m"), last),
        form(AUDIO, first, last, part("model", b"m")),
    ):
        request = parse_form(PATH, body, KIND)
        assert request.body == form(AUDIO, part("model", b"m"))
        assert request.fields == {"model": "m"}


def test_clients_that_split_requests_themselves_may_steer_except_for_events() -> None:
    body = form(part("model", b"m"), part("vllm_xargs", b'{"kv_transfer_params":"x"}'))
    assert parse_form(PATH, body, KIND, rules=BodyRules(keeps_transfer=True)).body == body
    with pytest.raises(InvalidRequest, match="clients may not set 'kv_cache_report_mode'"):
        parse_form(PATH, form(part("kv_cache_report_mode", b"")), KIND, rules=BodyRules(keeps_transfer=True))


def test_a_form_without_a_model_is_rejected_unless_the_query_names_one() -> None:
    body = form(AUDIO)
    with pytest.raises(ModelMissing):
        parse_form(PATH, body, KIND)
    request = parse_form(PATH, body, KIND, rules=BodyRules(model="other"))
    assert (request.model, form_fields(request.body, KIND)) == ("other", {"model": "other"})
    assert AUDIO in request.body


@pytest.mark.parametrize("own", [b"", b"m"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_aliased_model_is_replaced_in_the_form(own: bytes, at: int) -> None:
    parts = [AUDIO, part("language", b"en")]
    parts.insert(at, part("model", own))
    renamed = renamed_form(form(*parts), "other")
    assert renamed == form(part("model", b"other"), AUDIO, part("language", b"en"))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (form(part("model", b"m"), part("model", b"n", '; filename="x"')), KIND),
        (form(part("model", b"n", '; filename="x"'), part("model", b"m")), KIND),
        (form(part("model", b"m"), part("Model", b"n")), KIND),
        (form(part("mod\\el", b"m")), KIND),
        (form(part("model", b"m", "\r\nContent-Transfer-Encoding: quoted-printable")), KIND),
        (form(part("model", b"m", ";\r\n name=other")), KIND),
        (form(part("model", b"m")), KIND + b"; charset=utf-7"),
        (form(part("model", b"m")), b"multipart/form-data; charset=utf-16; boundary=xx"),
        (form(part("model", b"m")), KIND + b"; boundary=yy"),
        (form(part("model", b"m")), b"multipart/form-data; boundary=yy; boundary=xx"),
        (form(part("model", b"m"), part("lora_path", b"a"), part("lora_path", b"b")), KIND),
    ],
)
def test_a_second_model_is_rejected_however_it_is_hidden(body: bytes, kind: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_form(PATH, body, kind)


def test_adapters_are_checked_against_the_key() -> None:
    body = form(part("model", b"m"), part("lora_path", b"ad1"))
    assert parse_form(PATH, body, KIND, rules=BodyRules(models={"m", "ad1"})).body == body
    assert parse_form(PATH, body, KIND).body == body
    with pytest.raises(Forbidden):
        parse_form(PATH, body, KIND, rules=BodyRules(models={"m"}))


def test_a_json_body_is_not_forwarded_as_a_form() -> None:
    def http(*kinds: bytes) -> HttpRequest:
        return HttpRequest("POST", PATH.encode(), [(b"content-type", kind) for kind in kinds])

    check_no_form(http(b"application/json"))
    check_no_form(http())
    for kind in (KIND, b"Application/X-WWW-Form-Urlencoded"):
        with pytest.raises(InvalidRequest, match="application/json"):
            check_no_form(http(b"application/json", kind))
    assert (form_kind(http(KIND)), form_kind(http())) == (KIND, None)
    with pytest.raises(InvalidRequest, match="several"):
        form_kind(http(KIND, b"application/json"))
