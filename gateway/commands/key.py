"""Command `kvgate key`: `new` makes an API key and its line of the key file, `import` makes such a line for
each key that clients have already. `list` and `revoke` (`commands/revocation.py`) read and change a key file,
which a running gateway follows.

Lines go to standard output, for `>> keys.jsonl`; a new key to standard error, once: no file has it. Keys to
import are read from a file or standard input, never from the command line, which others can see, and are in
nothing that is printed.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from getpass import getpass
from pathlib import Path

from gateway.commands import revocation
from gateway.core.errors import ConfigError
from gateway.runtime.terminal import print_lines
from gateway.tenancy.auth.api_keys import (
    ID_DIGITS,
    NUM_SALT_BYTES,
    NUM_SECRET_BYTES,
    check_imported,
    is_ours,
    make_key,
)
from gateway.tenancy.auth.key_format import format_key_record, parse_key_file

_DAYS = re.compile(r"([0-9]{1,5})d")


def add(parser: argparse.ArgumentParser) -> None:
    doing = parser.add_subparsers(required=True, metavar="new|import|list|revoke", dest="action")
    new = doing.add_parser("new", help="make a key; print its line for --key-file, and the key to stderr")
    old = doing.add_parser("import", help="print lines for keys that clients have already, read one per line")
    old.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="with the keys (default: standard input)"
    )
    listed = doing.add_parser(
        "list", help="the keys of a key file: id, tenant, models, expiry; no key, no hash"
    )
    revoke = doing.add_parser("revoke", help="remove a key from a key file; running gateways follow the file")
    revocation.add(revoke)
    for file_user in (listed, revoke):
        file_user.add_argument("--key-file", required=True, metavar="FILE", help="the gateway's key file")
    for each in (new, old):
        each.add_argument(
            "--tenant", required=True, metavar="NAME", help="tenant of the requests made with it"
        )
        each.add_argument(
            "--models",
            default=None,
            metavar="NAMES",
            help="models it may use, separated by commas (default: all)",
        )
        each.add_argument(
            "--expires",
            default="",
            metavar="WHEN",
            help="a date or time, UTC by default, or 90d",
        )
        each.add_argument("--admin", action="store_true", help="give it admin scope too, see --admin-auth")


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code. Raises ConfigError."""
    if args.action == "list":
        print_lines(*_listed(_text(args.key_file), args.key_file, time.time()))
        return 0
    if args.action == "revoke":
        return revocation.run(args)
    if args.action == "import":
        lines = [_imported(args, number, key) for number, key in _given(args.file)]
        if not lines:
            raise ConfigError("import: the input has no keys")
        parse_key_file("\n".join(lines), "import")  # no key twice
        print_lines(*lines)
        return 0
    key = make_key(os.urandom(ID_DIGITS // 2), os.urandom(NUM_SECRET_BYTES))
    try:
        line = _line(args, key)
    except ValueError as exc:
        raise ConfigError(f"--{exc}") from exc
    print_lines(f"API key (shown only once): {key.decode()}", to=sys.stderr)
    print_lines(line)
    return 0


def _text(file: str) -> str:
    try:
        return Path(file).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ConfigError(f"--key-file {file}: cannot be read: {reason}") from exc


def _listed(text: str, file: str, now: float) -> Iterator[str]:
    """Table of the keys of a file. Raises ConfigError where a gateway would refuse the file."""
    rows = [("id", "tenant", "models", "expires", "scope")]
    for key_id, entry in parse_key_file(text, file).entries.items():
        caller = entry.caller
        assert caller is not None, "each line of a file has one"
        rows.append(
            (
                key_id.decode(),
                caller.tenant or "",
                ",".join(sorted(caller.models)) if caller.models else "all",
                _expiry_words(caller.expires_s, now),
                "admin" if caller.is_admin else "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _expiry_words(expires_s: float, now: float) -> str:
    if not expires_s:
        return "never"
    day = datetime.fromtimestamp(expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{day} (expired)" if expires_s <= now else day


def _line(args: argparse.Namespace, key: bytes, new_id: bytes = b"") -> str:
    models = [name for name in map(str.strip, (args.models or "").split(",")) if name]
    if args.models is not None and not models:  # an unset variable, perhaps: not all of them
        raise ValueError("models: name one or more, or leave the option out for all")
    expires = expiry(args.expires, time.time())
    return format_key_record(
        key, os.urandom(NUM_SALT_BYTES), args.tenant, models, expires, args.admin, new_id
    )


def _given(file: str) -> Sequence[tuple[int, bytes]]:
    """Keys with their line numbers. Typed ones are not echoed."""
    try:
        if file != "-":
            data = Path(file).expanduser().read_bytes()
        elif sys.stdin.isatty():
            data = getpass("the key: ").encode()
        else:
            data = sys.stdin.buffer.read()
    except OSError as exc:
        raise ConfigError(f"import: {file} cannot be read: {exc.strerror}") from exc
    lines = enumerate(map(bytes.strip, data.splitlines()), 1)
    return [(number, line) for number, line in lines if line]


def _imported(args: argparse.Namespace, number: int, key: bytes) -> str:
    """Line for a key; one that another kvgate made keeps its id. The key is in no message."""
    if is_ours(key):
        new_id = b""
    else:
        try:
            check_imported(key)
        except ValueError as exc:
            raise ConfigError(f"import: line {number}: {exc}") from exc
        new_id = os.urandom(ID_DIGITS // 2)
    try:
        return _line(args, key, new_id)
    except ValueError as exc:
        raise ConfigError(f"--{exc}") from exc


def expiry(text: str, now: float) -> str:
    """Expiry as a date: a number of days from `now`, or the given text."""
    if not (days := _DAYS.fullmatch(text)):
        return text
    try:
        return datetime.fromtimestamp(now + int(days[1]) * 86400, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError) as exc:
        raise ConfigError(f"--expires: '{text}' is beyond the calendar") from exc
