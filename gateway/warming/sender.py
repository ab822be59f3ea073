"""Sender of prefixes: a control call, as probes are, with the worker's own credentials."""

from collections.abc import Mapping

import aiohttp

from gateway.core.worker import Worker
from gateway.upstream.control_client import ControlSession, failure, read_all
from gateway.warming.body import PATH

MAX_ANSWER_BYTES = 1 << 20


class PrefixSender:
    """Sends prefixes with `headers`, those of the gateway's own calls to workers."""

    def __init__(self, session: ControlSession, headers: Mapping[str, str]) -> None:
        self._session, self._headers = session, headers

    def __repr__(self) -> str:
        return "PrefixSender()"

    async def send(self, worker: Worker, body: bytes, left_s: float) -> str | None:
        """Send a prefix to a worker; returns why it failed, None where it was answered, "" where it was not
        within `left_s`."""
        headers = {**self._headers, "content-type": "application/json"}
        if worker.dp_size > 1:
            headers["x-data-parallel-rank"] = str(worker.dp_rank)
        timeout = aiohttp.ClientTimeout(total=left_s)
        try:
            async with self._session.call(
                "POST", worker.url, PATH, data=body, headers=headers, timeout=timeout
            ) as answer:
                await read_all(answer, MAX_ANSWER_BYTES)
                return None if answer.status == 200 else f"answered {answer.status} to a prompt of token ids"
        except TimeoutError:
            return ""
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return f"did not answer: {failure(exc)}"
