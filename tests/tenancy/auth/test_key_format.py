"""A key file's lines: what they say, and what is wrong with them, by place."""

import json
from typing import Any

import pytest

from gateway.core.errors import ConfigError
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.key_format import check_tenant, expiry_s, line_of, ring_of

SALT = bytes(range(16))
KEY = make_key(bytes(6), bytes(32))
OTHER = make_key(bytes(5) + b"1", bytes(32))
LINE = line_of(KEY, SALT, "acme")


def changed(**fields: Any) -> str:
    given = json.loads(LINE) | fields
    return json.dumps({name: value for name, value in given.items() if value is not ...})


def test_what_is_written_is_read() -> None:
    text = f"# ours\n\n  {LINE}  \n{line_of(OTHER, SALT, 'b', ['m', 'n'], '2027-01-01', True)}\n"
    ring = ring_of(text, "keys")
    plain, all_set = ring.find(KEY), ring.find(OTHER)
    assert plain and all_set
    assert (plain.tenant, plain.name, plain.models, plain.expires_s) == ("acme", "000000000000", None, 0)
    assert not plain.is_admin and plain.salt is None
    assert (all_set.tenant, all_set.models) == ("b", {"m", "n"})
    assert (all_set.expires_s, all_set.is_admin) == (1798761600.0, True)
    assert "models" not in LINE and KEY.decode()[17:] not in LINE


def test_an_empty_file_has_no_keys() -> None:
    assert not ring_of("# none yet\n", "keys").entries


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kvg-x", "JSON is malformed: invalid character (byte 0); `kvgate key new` prints lines as"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `id`"),
        (changed(hash=...), "missing required field `hash`"),
        (changed(tenant=5), "Expected `str`, got `int` - at `tenant`"),
        (changed(models="m"), "at `models`"),
        (changed(models=[]), "models: list one or more"),
        (changed(modells=["m"]), "unknown field `modells`"),
        (changed(admin="yes"), "at `admin`"),
        (changed(id="xyz"), "id: it is not hexadecimal"),
        (changed(id="0b"), "id: it has 12 digits"),
        (changed(id="ABCDEFABCDEF"), "id: it has 12 digits, in lower case"),
        (changed(salt="00"), "salt and hash: they have 32 and 64 digits"),
        (changed(hash="é"), "hash: it is not hexadecimal"),
        (changed(tenant=""), "tenant: give a name"),
        (changed(tenant="*"), "tenant: '*' means something else"),
        (changed(expires="soon"), "expires: 'soon' is no date"),
        ('{"group":"g"}', "missing required field `tenants`"),
        ('{"group":"g","tenants":["a"],"x":1}', "unknown field `x`"),
        ('{"group":"g","tenants":[" a"]}', "tenant: give a name"),
        (LINE, "id: '000000000000' is on an earlier line too"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_field(line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ring_of(f"# a comment\n{LINE}\n{line}\n", "key_file: keys.jsonl")
    assert str(caught.value).startswith("key_file: keys.jsonl:3: ")
    assert words in str(caught.value)
    assert json.loads(LINE)["hash"] not in str(caught.value)


def test_groups_are_known_to_keys_on_lines_before_them() -> None:
    seen = []

    def salt_of(tenant: str, groups: Any) -> str:
        seen.append((tenant, dict(groups)))
        return f"salt of {groups.get(tenant, tenant)}"

    text = LINE + '\n{"group":"g","tenants":["acme","b"]}\n{"group":"h","tenants":["c"]}\n'
    ring = ring_of(text, "keys", salt_of)
    who = ring.find(KEY)
    assert who and who.salt == "salt of g"
    assert ring.groups == {"acme": "g", "b": "g", "c": "h"} == seen[0][1]


def test_a_tenant_is_in_one_group() -> None:
    text = '{"group":"g","tenants":["a"]}\n{"group":"h","tenants":["a"]}'
    with pytest.raises(ConfigError, match=r"^keys:2: tenants: 'a' is in the group 'g' too$"):
        ring_of(text, "keys")


def test_a_line_that_would_be_refused_is_not_written() -> None:
    with pytest.raises(ValueError, match="tenant"):
        line_of(KEY, SALT, "anonymous")
    with pytest.raises(ValueError, match="expires"):
        line_of(KEY, SALT, "a", expires="2027-13-01")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("1970-01-02", 86400),
        ("1970-01-01T00:01:00", 60),
        ("1970-01-01T00:01:00Z", 60),
        ("1970-01-01T01:00:00+01:00", 0),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text: str, seconds: float) -> None:
    assert expiry_s(text) == seconds


@pytest.mark.parametrize("name", ["x" * 65, "a\nb", "a ", "(others)"])
def test_names_that_no_tenant_has(name: str) -> None:
    with pytest.raises(ValueError, match="tenant"):
        check_tenant(name)
    assert check_tenant("Ünal & Söhne") == "Ünal & Söhne"


OLD = b"sk-Zp4q9XvT2mLwK8cRbN7d"


def test_a_line_of_a_key_that_was_not_made_here() -> None:
    line = line_of(OLD, SALT, "acme", new_id=bytes(6))
    assert json.loads(line).keys() == {"id", "salt", "hash", "tenant", "find"}
    assert OLD.decode()[3:] not in line
    who = ring_of(f"{LINE.replace('0' * 12, '1' * 12)}\n{line}", "keys").find(OLD)
    assert who and (who.tenant, who.name) == ("acme", "000000000000")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed(find="xy"), "keys:1: find: it is not hexadecimal"),
        (changed(find="00"), "keys:1: find: it has 32 digits"),
        (
            "\n".join(line_of(OLD, SALT, "a", new_id=bytes([n] * 6)) for n in range(2)),
            "keys:2: find: this key is on an earlier line too",
        ),
    ],
)
def test_what_is_wrong_with_one(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ring_of(text, "keys")
    assert words in str(caught.value)
