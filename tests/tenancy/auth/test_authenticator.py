"""Authentication: the table of credentials that are accepted, those that are rejected, and the messages."""

import pytest

from gateway.core.caller import Caller
from gateway.core.errors import Forbidden, GatewayError, Unauthorized
from gateway.http.messages import Header, HttpRequest
from gateway.http.networks import Trusted
from gateway.tenancy.admission.request_identity import HeaderNames
from gateway.tenancy.auth import authenticator as module
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.authenticator import MAX_SHOWN, Authenticator
from gateway.tenancy.auth.key_format import format_key_record, parse_key_file

NAMES = HeaderNames(b"x-tenant", b"x-priority", b"x-slo")
SALT = bytes(range(16))
ACME, LATE, ROOT = (make_key(bytes([n] * 6), bytes([n] * 32)) for n in range(3))
UNKNOWN = make_key(bytes([9] * 6), bytes(32))
FILE = "\n".join(
    [
        format_key_record(ACME, SALT, "acme", ["m"]),
        format_key_record(LATE, SALT, "late", expires="1970-01-02"),
        format_key_record(ROOT, SALT, "ops", admin=True),
    ]
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def made(*trusted: str, with_keys: bool = True, **options: bool) -> Authenticator:
    authenticator = Authenticator(
        clock=Clock(),
        names=NAMES,
        trusted=Trusted(trusted, "--trust-headers-from"),
        salt_of=lambda tenant: f"salt of {tenant}",
        **options,
    )
    if with_keys:
        authenticator.set_ring(parse_key_file(FILE, "keys"))
    return authenticator


def request(*headers: Header) -> HttpRequest:
    return HttpRequest("POST", b"/v1/completions", list(headers))


def asked(authenticator: Authenticator, *headers: Header, peer: str | None = None) -> Caller:
    return authenticator.ask(request(*headers), peer)


def refusal(authenticator: Authenticator, *headers: Header) -> GatewayError:
    with pytest.raises((Unauthorized, Forbidden)) as caught:
        asked(authenticator, *headers)
    error: GatewayError = caught.value
    assert authenticator.refusals == {error.code: 1}
    return error


# credentials ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer " + ACME)],
        [(b"authorization", b"bearer   " + ACME + b" ")],
        [(b"x-api-key", ACME)],
        [(b"authorization", b"Basic dXNlcjpwYXNz"), (b"x-api-key", ACME)],
        [(b"authorization", b"Bearer " + ACME), (b"x-api-key", UNKNOWN)],
        [(b"x-api-key", ACME), (b"x-tenant", b"acme")],
        [(b"authorization", b"Bearer sk-ant-oat01-not-ours"), (b"x-api-key", ACME)],
        [(b"x-api-key", ACME), (b"authorization", b"Bearer ")],
        [(b"authorization", b""), (b"x-api-key", ACME)],
        [(b"authorization", b"Bearer " + ACME), (b"x-api-key", b"")],
        [(b"authorization", b"Bearer " + ACME), (b"x-api-key", ACME)],
        [(b"authorization", b"Bearer " + UNKNOWN), (b"authorization", b"Bearer " + ACME)],
        [(b"authorization", b"Bearer " + ACME), (b"authorization", b"Basic dXNlcjpwYXNz")],
        [(b"x-api-key", b" " + ACME + b" "), (b"x-api-key", b"other")],
    ],
)
def test_a_key_is_accepted_in_either_header(headers: list[Header]) -> None:
    caller = asked(made(), *headers)
    assert (caller.tenant, caller.may_use("m"), caller.may_use("n")) == ("acme", True, False)


@pytest.mark.parametrize(
    ("headers", "status", "code", "words"),
    [
        ([], 401, "missing_api_key", "API key missing"),
        ([(b"authorization", b"")], 401, "missing_api_key", "send 'Authorization: Bearer KEY'"),
        ([(b"authorization", b"Bearer ")], 401, "missing_api_key", ""),
        ([(b"authorization", b"Basic dXNlcjpwYXNz")], 401, "missing_api_key", ""),
        ([(b"authorization", ACME)], 401, "missing_api_key", ""),
        ([(b"x-api-key", b"")], 401, "missing_api_key", ""),
        ([(b"x-api-key", UNKNOWN)], 401, "invalid_api_key", "unknown API key"),
        ([(b"authorization", b"Bearer EMPTY")], 401, "invalid_api_key", ""),
        ([(b"x-api-key", b"a.b.c")], 401, "invalid_api_key", ""),
        ([(b"x-api-key", UNKNOWN), (b"authorization", b"Bearer x")], 401, "invalid_api_key", ""),
        ([(b"x-api-key", ACME), (b"authorization", b"Bearer " + ROOT)], 403, "ambiguous_credentials", "two"),
        ([(b"x-api-key", b"%d" % n) for n in range(MAX_SHOWN + 1)], 401, "too_many_credentials", "over 4"),
        ([(b"x-api-key", ACME), (b"x-tenant", b"b"), (b"x-tenant", b"acme")], 403, "tenant_mismatch", ""),
        ([(b"x-api-key", ACME), (b"x-tenant", b"b")], 403, "tenant_mismatch", "belongs to tenant 'acme'"),
        ([(b"x-api-key", ACME), (b"x-tenant", b"")], 403, "tenant_mismatch", ""),
    ],
)
def test_invalid_credentials_are_rejected(headers: list[Header], status: int, code: str, words: str) -> None:
    error = refusal(made(), *headers)
    assert (error.status, error.code) == (status, code)
    assert words in error.message
    assert not any(key[17:].decode() in error.message for key in (ACME, UNKNOWN))


def test_an_expired_key_is_rejected_with_its_date() -> None:
    authenticator = made()
    clock = authenticator._clock
    assert isinstance(clock, Clock)
    clock.now_s = 86399.9
    assert asked(authenticator, (b"x-api-key", LATE)).tenant == "late"
    clock.now_s = 86400.0
    error = refusal(authenticator, (b"x-api-key", LATE))
    assert (error.status, error.code) == (401, "expired_api_key")
    assert "'010101010101' expired on 1970-01-02T00:00:00Z" in error.message
    both = asked(authenticator, (b"authorization", b"Bearer " + LATE), (b"x-api-key", ACME))
    assert both.tenant == "acme"
    assert authenticator.refusals == {"expired_api_key": 1}, "an admitted request counts no rejection"
    with pytest.raises(Unauthorized, match="expired on"):
        asked(authenticator, (b"authorization", b"Bearer not-ours"), (b"x-api-key", LATE))


# forwarding -------------------------------------------------------------------------------------------


def test_the_key_is_not_forwarded_unless_configured() -> None:
    headers = [
        (b"a", b"1"),
        (b"x-api-key", ACME),
        (b"authorization", b"Bearer " + ACME),
        (b"x-tenant", b"acme"),
    ]
    http = request(*headers)
    made().ask(http, None)
    assert http.headers == [headers[0], headers[3]]
    http = request(*headers)
    made(passes_key=True).ask(http, None)
    assert http.headers == headers


def test_a_rejected_key_is_removed_from_the_request() -> None:
    http = request((b"x-api-key", UNKNOWN))
    with pytest.raises(Unauthorized):
        made().ask(http, None)
    assert http.headers == []


# admins -----------------------------------------------------------------------------------------------


def test_admins_have_the_admin_scope() -> None:
    authenticator = made()
    assert authenticator.check_admin([b"not-ours", ROOT]).tenant == "ops"
    with pytest.raises(Forbidden, match="has no admin scope") as caught:
        authenticator.check_admin([ACME])
    assert caught.value.code == "admin_scope_required"
    with pytest.raises(Unauthorized):
        authenticator.check_admin([])


def test_a_key_with_admin_scope_counts_beside_another_of_its_tenant() -> None:
    plain = make_key(bytes([7] * 6), bytes([7] * 32))
    authenticator = made()
    authenticator.set_ring(parse_key_file(FILE + "\n" + format_key_record(plain, SALT, "ops"), "keys"))
    assert authenticator.check_admin([plain, ROOT]).is_admin
    with pytest.raises(Forbidden, match="of two tenants"):
        authenticator.check_admin([ACME, ROOT])


def test_two_keys_of_a_tenant_open_the_models_of_both() -> None:
    """A client may hold a key for each model; the order in which it shows them says nothing."""
    authenticator = made()
    other, all_of_them = (make_key(bytes([n] * 6), bytes([n] * 32)) for n in (5, 6))
    lines = [
        FILE,
        format_key_record(other, SALT, "acme", ["n"]),
        format_key_record(all_of_them, SALT, "acme"),
    ]
    authenticator.set_ring(parse_key_file("\n".join(lines), "keys"))

    def models(first: bytes, second: bytes) -> frozenset[str] | None:
        caller = asked(authenticator, (b"authorization", b"Bearer " + first), (b"x-api-key", second))
        assert (caller.tenant, caller.name) == ("acme", first.split(b"-")[1].decode())
        return caller.models

    assert models(ACME, other) == models(other, ACME) == frozenset("mn")
    assert models(ACME, all_of_them) is None and models(all_of_them, ACME) is None
    assert models(ACME, ACME) == frozenset("m")


# tokens -----------------------------------------------------------------------------------------------


def test_tokens_are_accepted_where_an_issuer_is_configured() -> None:
    authenticator = made(with_keys=False)
    authenticator.jwt = lambda token: Caller(token.decode())
    assert asked(authenticator, (b"authorization", b"Bearer a.b.c")).tenant == "a.b.c"
    assert refusal(authenticator, (b"x-api-key", ACME)).code == "invalid_api_key"


def test_rejected_tokens_are_counted_by_reason() -> None:
    def refuse(token: bytes) -> Caller:
        raise Unauthorized("it is of another issuer", code="invalid_token")

    authenticator = made()
    authenticator.jwt = refuse
    assert refusal(authenticator, (b"x-api-key", b"a.b.c")).code == "invalid_token"
    assert asked(authenticator, (b"x-api-key", ACME)).tenant == "acme"
    assert asked(authenticator, (b"authorization", b"Bearer a.b.c"), (b"x-api-key", ACME)).tenant == "acme"


def test_a_token_and_a_key_of_two_tenants_are_refused() -> None:
    authenticator = made()
    authenticator.jwt = lambda token: Caller(token.decode())
    shown = [(b"authorization", b"Bearer a.b.c"), (b"x-api-key", ACME)]
    assert refusal(authenticator, *shown).code == "ambiguous_credentials"
    authenticator.jwt = lambda token: Caller("acme", "jwt")
    assert asked(authenticator, *shown).name == "jwt"


# without keys -------------------------------------------------------------------------------------------


def test_without_keys_the_tenant_is_that_of_admission_control() -> None:
    authenticator, declared_identity = made("10.0.0.0/8", with_keys=False), (b"x-tenant", b"acme")
    assert (authenticator.wants_key, authenticator.asks_peer) == (False, True)
    caller = asked(authenticator, declared_identity, peer="10.1.2.3")
    assert (caller.tenant, caller.salt) == ("acme", "salt of acme")
    assert asked(authenticator, declared_identity, peer="10.1.2.3") is caller
    assert asked(authenticator, declared_identity, peer="11.0.0.1").tenant == "anonymous"
    named = asked(authenticator, declared_identity, (b"x-api-key", b"k"), peer=None)
    assert named.tenant.startswith("key-")
    assert not made(with_keys=False).asks_peer and not made("10.0.0.0/8").asks_peer


def test_without_keys_credentials_are_forwarded_to_the_worker() -> None:
    http = request((b"authorization", b"Bearer w"))
    made(with_keys=False).ask(http, None)
    assert http.headers == [(b"authorization", b"Bearer w")]


def test_unauthenticated_callers_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNAUTHENTICATED", 3)
    authenticator = made(with_keys=False)
    for number in range(10):
        asked(authenticator, (b"x-api-key", b"%d" % number))
    assert len(authenticator._unauthenticated) <= 3
    authenticator.set_ring(None)
    assert not authenticator._unauthenticated


def test_the_repr_of_an_authenticator_shows_keys_and_rejections() -> None:
    assert repr(made()) == "Authenticator(KeyRing(3 keys, 0 groups), jwt=False, refusals={})"
