"""Salts: the same for one tenant in each gateway, and different from all others."""

from gateway.tenancy.auth.tenant_salt import Salts

SECRET = b"s" * 32
FORBIDDEN = set("@/\\\0")
"""Characters that vLLM rejects, entrypoints/generate/base/protocol.py."""


def test_a_tenant_has_one_salt_in_each_gateway_with_the_secret() -> None:
    salts = Salts(SECRET)
    assert salts.of("acme", {}) == Salts(SECRET).of("acme", {})
    assert len({salts.of("acme", {}), salts.of("b", {}), Salts(b"t" * 32).of("acme", {})}) == 3


def test_tenants_of_a_group_share_a_salt_of_no_tenant() -> None:
    salts, groups = Salts(SECRET), {"a": "g", "b": "g"}
    assert salts.of("a", groups) == salts.of("b", groups)
    others = {salts.of(name, {}) for name in ("a", "b", "g", "group:g")} | {salts.of("g", groups)}
    assert salts.of("a", groups) not in others


def test_engines_accept_a_salt() -> None:
    for tenant in ("a", "Ünal", "\udc80", "x" * 500):
        salt = Salts(SECRET).of(tenant, {})
        assert len(salt) == 43 and salt.isascii() and not FORBIDDEN & set(salt)
