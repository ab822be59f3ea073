"""Answers of a gateway's admin API to commands, and words for addresses where something else answers."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from gateway.core.causes import cause_of
from gateway.core.errors import ConfigError

ELSEWHERE = "another server answers there, such as a worker; the admin port is --admin-port, 9400 by default"


def unreachable(gateway: str, exc: BaseException) -> ConfigError:
    """Make the error for a gateway that cannot be asked."""
    if isinstance(exc, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        cause = "it is not a URL, as in http://127.0.0.1:9400"
    elif isinstance(exc, aiohttp.ClientConnectorError):
        cause = f"cannot connect: {cause_of(exc)}; is a gateway running there?"
    elif isinstance(exc, msgspec.MsgspecError | ValueError):
        cause = f"its answer is not JSON; {ELSEWHERE}"
    else:
        cause = cause_of(exc)
    return ConfigError(f"--gateway {gateway}: not a gateway's admin address: {cause}")


def check_answer(gateway: str, answer: Any, *fields: str) -> None:
    """Check that an answer has what an admin API's has. Raises ConfigError."""
    if not isinstance(answer, Mapping) or any(field not in answer for field in fields):
        raise ConfigError(
            f"--gateway {gateway}: not a gateway's admin address: its answer has no {', '.join(fields)}; "
            f"{ELSEWHERE}"
        )


def refusal(gateway: str, status: int, answer: Any, verb: str = "answers") -> str:
    """Describe an error of the admin API, or of another server."""
    error = answer.get("error") if isinstance(answer, Mapping) else None
    if isinstance(error, Mapping) and isinstance(error.get("code", ""), str) and error.get("message"):
        return f"the gateway {verb} {status}: {error['message']}"
    return f"{gateway} answers {status} ({_phrase(status)}) and is not a gateway's admin address: {ELSEWHERE}"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no standard status"
