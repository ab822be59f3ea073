"""Lines of a key file: their meaning, and errors by line and field."""

import json
from typing import Any

import pytest

from gateway.core.errors import ConfigError
from gateway.tenancy.auth.api_keys import make_key
from gateway.tenancy.auth.key_format import check_tenant, expiry_s, format_key_record, parse_key_file

SALT = bytes(range(16))
KEY = make_key(bytes(6), bytes(32))
OTHER = make_key(bytes(5) + b"1", bytes(32))
LINE = format_key_record(KEY, SALT, "acme")


def changed(**fields: Any) -> str:
    given = json.loads(LINE) | fields
    return json.dumps({name: value for name, value in given.items() if value is not ...})


def test_a_written_line_is_read_back() -> None:
    text = f"# ours\n\n  {LINE}  \n{format_key_record(OTHER, SALT, 'b', ['m', 'n'], '2027-01-01', True)}\n"
    ring = parse_key_file(text, "keys")
    plain, all_set = ring.find(KEY), ring.find(OTHER)
    assert plain and all_set
    assert (plain.tenant, plain.name, plain.models, plain.expires_s) == ("acme", "000000000000", None, 0)
    assert not plain.is_admin and plain.salt is None
    assert (all_set.tenant, all_set.models) == ("b", {"m", "n"})
    assert (all_set.expires_s, all_set.is_admin) == (1798761600.0, True)
    assert "models" not in LINE and KEY.decode()[17:] not in LINE


def test_an_empty_file_has_no_keys() -> None:
    assert not parse_key_file("# none yet\n", "keys").entries


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kvg-x", "JSON is malformed: invalid character (byte 0); `kvgate key new` prints valid lines"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `id`"),
        (changed(hash=...), "missing required field `hash`"),
        (changed(tenant=5), "Expected `str`, got `int` - at `tenant`"),
        (changed(models="m"), "at `models`"),
        (changed(models=[]), "models: list one or more"),
        (changed(modells=["m"]), "unknown field `modells`"),
        (changed(admin="yes"), "at `admin`"),
        (changed(id="xyz"), "id: not hexadecimal"),
        (changed(id="0b"), "id: give 12 hexadecimal digits"),
        (changed(id="ABCDEFABCDEF"), "id: give 12 hexadecimal digits in lower case"),
        (changed(salt="00"), "salt and hash: give 32 and 64 digits"),
        (changed(hash="é"), "hash: not hexadecimal"),
        (changed(tenant=""), "tenant: give a name"),
        (changed(tenant="*"), "tenant: '*' is reserved"),
        (changed(expires="soon"), "expires: 'soon' is not a date"),
        ('{"group":"g"}', "missing required field `tenants`"),
        ('{"group":"g","tenants":["a"],"x":1}', "unknown field `x`"),
        ('{"group":"g","tenants":[" a"]}', "tenant: give a name"),
        (LINE, "id: '000000000000' repeats an earlier line"),
    ],
)
def test_a_mistake_is_named_by_line_and_field(line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_key_file(f"# a comment\n{LINE}\n{line}\n", "key_file: keys.jsonl")
    assert str(caught.value).startswith("key_file: keys.jsonl:3: ")
    assert words in str(caught.value)
    assert json.loads(LINE)["hash"] not in str(caught.value)


def test_groups_are_known_to_keys_on_lines_before_them() -> None:
    seen = []

    def salt_of(tenant: str, groups: Any) -> str:
        seen.append((tenant, dict(groups)))
        return f"salt of {groups.get(tenant, tenant)}"

    text = LINE + '\n{"group":"g","tenants":["acme","b"]}\n{"group":"h","tenants":["c"]}\n'
    ring = parse_key_file(text, "keys", salt_of)
    caller = ring.find(KEY)
    assert caller and caller.salt == "salt of g"
    assert ring.groups == {"acme": "g", "b": "g", "c": "h"} == seen[0][1]


def test_a_tenant_is_in_one_group() -> None:
    text = '{"group":"g","tenants":["a"]}\n{"group":"h","tenants":["a"]}'
    with pytest.raises(ConfigError, match=r"^keys:2: tenants: 'a' is also in the group 'g'$"):
        parse_key_file(text, "keys")


def test_a_line_that_would_be_rejected_is_not_written() -> None:
    with pytest.raises(ValueError, match="tenant"):
        format_key_record(KEY, SALT, "anonymous")
    with pytest.raises(ValueError, match="expires"):
        format_key_record(KEY, SALT, "a", expires="2027-13-01")


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
def test_times_are_in_utc_by_default(text: str, seconds: float) -> None:
    assert expiry_s(text) == seconds


@pytest.mark.parametrize("name", ["x" * 65, "a\nb", "a ", "(others)"])
def test_an_invalid_tenant_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="tenant"):
        check_tenant(name)
    assert check_tenant("Ünal & Söhne") == "Ünal & Söhne"


OLD = b"sk-Zp4q9XvT2mLwK8cRbN7d"


def test_a_line_of_an_imported_key_is_read() -> None:
    line = format_key_record(OLD, SALT, "acme", new_id=bytes(6))
    assert json.loads(line).keys() == {"id", "salt", "hash", "tenant", "find"}
    assert OLD.decode()[3:] not in line
    caller = parse_key_file(f"{LINE.replace('0' * 12, '1' * 12)}\n{line}", "keys").find(OLD)
    assert caller and (caller.tenant, caller.name) == ("acme", "000000000000")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed(find="xy"), "keys:1: find: not hexadecimal"),
        (changed(find="00"), "keys:1: find: give 32 digits"),
        (
            "\n".join(format_key_record(OLD, SALT, "a", new_id=bytes([n] * 6)) for n in range(2)),
            "keys:2: find: this key repeats an earlier line",
        ),
    ],
)
def test_a_mistake_in_an_imported_key_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_key_file(text, "keys")
    assert words in str(caught.value)
