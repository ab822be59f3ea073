"""`kvgate key new`: makes a key, and the line by which a gateway knows it.

The line goes to standard output, for `>> keys.jsonl`; the key to standard error, once: no file has it.
"""

import argparse
import os
import re
import sys
import time
from datetime import UTC, datetime

from gateway.core.errors import ConfigError
from gateway.core.keylines import line_of
from gateway.core.keys import ID_DIGITS, NUM_SALT_BYTES, NUM_SECRET_BYTES, make_key

_DAYS = re.compile(r"([0-9]{1,5})d")


def add(parser: argparse.ArgumentParser) -> None:
    doing = parser.add_subparsers(required=True, metavar="new", dest="action")
    new = doing.add_parser("new", help="make a key; prints its line for --key-file, and the key to stderr")
    new.add_argument("--tenant", required=True, metavar="NAME", help="whose requests are made with it")
    new.add_argument(
        "--models", default="", metavar="NAMES", help="those it may use, separated by commas (default: all)"
    )
    new.add_argument(
        "--expires", default="", metavar="WHEN", help="a date or time, UTC unless it says otherwise, or 90d"
    )
    new.add_argument("--admin", action="store_true", help="it opens the admin API too, see --admin-key")


def run(args: argparse.Namespace) -> int:
    """Raises ConfigError."""
    key = make_key(os.urandom(ID_DIGITS // 2), os.urandom(NUM_SECRET_BYTES))
    models = [name for name in map(str.strip, args.models.split(",")) if name]
    expires = expiry(args.expires, time.time())
    try:
        line = line_of(key, os.urandom(NUM_SALT_BYTES), args.tenant, models, expires, args.admin)
    except ValueError as exc:
        raise ConfigError(f"--{exc}") from exc
    print(f"the key, which is shown this once: {key.decode()}", file=sys.stderr)
    print(line)
    return 0


def expiry(text: str, now: float) -> str:
    """So many days from now, or what was given."""
    if not (days := _DAYS.fullmatch(text)):
        return text
    try:
        return datetime.fromtimestamp(now + int(days[1]) * 86400, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError) as exc:
        raise ConfigError(f"--expires: '{text}' is beyond the calendar") from exc
