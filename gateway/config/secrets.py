"""Secrets that options name by their file."""

from hashlib import blake2b
from pathlib import Path

from gateway.apis.response_ids import ResponseIds
from gateway.core.errors import ConfigError


def read_key(file: str, option: str) -> str:
    """Read a key from its file. Raises ConfigError; no message contains the key."""
    try:
        key = Path(file).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{option}: {file} cannot be read") from exc
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(f"{option}: {file} holds no key")
    return key


def worker_headers(key_file: str) -> dict[str, str]:
    """Return the headers of each probe, with the workers' key if a file is given. Raises ConfigError."""
    return {"authorization": f"Bearer {read_key(key_file, 'worker_key_file')}"} if key_file else {}


def response_ids(key_file: str) -> ResponseIds:
    """Make the ids of stored responses, keyed if a file is given. Raises ConfigError."""
    key = read_key(key_file, "response_key_file") if key_file else ""
    return ResponseIds(blake2b(key.encode()).digest() if key else b"")
