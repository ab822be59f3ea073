"""OpenAI APIs as vLLM 0.32 answers them: /v1/completions and /v1/chat/completions."""

from itertools import accumulate
from typing import Any, Protocol

import msgspec

from engines.sim.job import FINGERPRINT, HttpJob, JobChoice, TokenCounts
from engines.sim.words import GeneratedText, ToolCall

Json = dict[str, Any]


class WholeFormat(Protocol):
    """Response format of an API without streaming."""

    def unstreamed(self, job: HttpJob, usage: TokenCounts) -> Json: ...


class ResponseFormat(WholeFormat, Protocol):
    """Response format of an API, also streamed."""

    def opening(self, job: HttpJob, usage: TokenCounts) -> bytes:
        """Events before the first token, sent together with it."""

    def chunk(self, job: HttpJob, choice: JobChoice, usage: TokenCounts) -> bytes:
        """Event of the token of `choice` that was just produced."""

    def closing(self, job: HttpJob, usage: TokenCounts) -> bytes:
        """Events after the last token."""


def sse(data: Json, event: str | None = None) -> bytes:
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def whole_usage(usage: TokenCounts, created_cache_tokens: int | None) -> Json:
    details = None
    if usage.cached is not None:
        details = {
            "cached_tokens": usage.cached,
            "created_cache_tokens": created_cache_tokens,
            "multimodal_tokens": None,
        }
    return _counts(usage) | {"prompt_tokens_details": details, "completion_tokens_details": None}


def _counts(usage: TokenCounts) -> Json:
    return {
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.total,
        "completion_tokens": usage.completion,
    }


class Completions:
    """Responses of /v1/completions. `echoes`: the prompts' texts, where the response must include
    them."""

    def __init__(self, echoes: list[str] | None = None) -> None:
        self._echoes = echoes

    def unstreamed(self, job: HttpJob, usage: TokenCounts) -> Json:
        choices = [self._choice(job, choice) for choice in job.choices]
        tail = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        head = _head(job, "cmpl", "text_completion", choices)
        head |= {"service_tier": None, "system_fingerprint": FINGERPRINT}
        return head | {"usage": whole_usage(usage, None)} | tail

    def opening(self, job: HttpJob, usage: TokenCounts) -> bytes:
        return b""

    def chunk(self, job: HttpJob, choice: JobChoice, usage: TokenCounts) -> bytes:
        text = choice.last_piece
        if choice.num_sent == 1:
            text = self._echo(job, choice) + text
        ids = job.asked.return_token_ids
        number = choice.num_sent - 1
        data: Json = {"index": choice.index, "text": text}
        data["logprobs"] = completion_logprobs(job, choice, number, number + 1)
        data |= {"finish_reason": choice.finish_reason, "stop_reason": _stop_reason(choice)}
        shows_prompt = choice.num_sent == 1 and (ids or job.asked.echo)
        data["prompt_token_ids"] = choice.prompt.tolist() if shows_prompt else None
        data["token_ids"] = [choice.answer.tokens[choice.num_sent - 1]] if ids else None
        chunk = _head(job, "cmpl", "text_completion", [data])
        if job.asked.usage_each_chunk:
            chunk["usage"] = _counts(_of(choice)) | {"completion_tokens_details": None}
        if choice.is_done and not job.asked.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return sse(chunk)

    def closing(self, job: HttpJob, usage: TokenCounts) -> bytes:
        if not job.asked.include_usage:
            return DONE
        counts = _counts(usage)
        if usage.cached is not None:
            counts["prompt_tokens_details"] = {"cached_tokens": usage.cached}
        last = _head(job, "cmpl", "text_completion", [])
        return sse(last | {"usage": counts, "system_fingerprint": FINGERPRINT}) + DONE

    def _choice(self, job: HttpJob, choice: JobChoice) -> Json:
        ids = job.asked.return_token_ids
        return {
            "index": choice.index,
            "text": self._echo(job, choice) + choice.text,
            "logprobs": completion_logprobs(job, choice, 0, len(choice.answer.tokens)),
            "finish_reason": choice.answer.finish,
            "stop_reason": choice.answer.stop_reason,
            "token_ids": choice.answer.tokens.tolist() if ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": choice.prompt.tolist() if ids else None,
            "routed_experts": None,
        }

    def _echo(self, job: HttpJob, choice: JobChoice) -> str:
        return self._echoes[choice.index // job.asked.num_choices] if self._echoes else ""


class Chat:
    """Responses of /v1/chat/completions."""

    def unstreamed(self, job: HttpJob, usage: TokenCounts) -> Json:
        ids = job.asked.return_token_ids
        head = _head(job, "chatcmpl", "chat.completion", [self._choice(job, each) for each in job.choices])
        head |= {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": whole_usage(usage, 0)}
        head |= {"prompt_logprobs": None, "prompt_token_ids": job.prompts[0].tolist() if ids else None}
        nones = ("prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics")
        return head | dict.fromkeys(nones)

    def opening(self, job: HttpJob, usage: TokenCounts) -> bytes:
        return b"".join(self._role(job, choice) for choice in job.choices)

    def _role(self, job: HttpJob, choice: JobChoice) -> bytes:
        delta = {"role": "assistant", "content": ""}
        data = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        chunk = _head(job, "chatcmpl", "chat.completion.chunk", [data])
        if job.asked.usage_each_chunk:
            chunk["usage"] = _counts(TokenCounts(len(choice.prompt), 0, None)) | {
                "completion_tokens_details": None
            }
        ids = choice.prompt.tolist() if job.asked.return_token_ids else None
        return sse(chunk | {"prompt_token_ids": ids, "prompt_text": None})

    def chunk(self, job: HttpJob, choice: JobChoice, usage: TokenCounts) -> bytes:
        number = choice.num_sent - 1
        data: Json = {"index": choice.index, "delta": _delta(choice)}
        data["logprobs"] = chat_logprobs(job, choice, number, number + 1)
        data["finish_reason"] = choice.chat_finish if choice.is_done else None
        if choice.is_done:
            data["stop_reason"] = choice.answer.stop_reason
        ids = job.asked.return_token_ids
        data["token_ids"] = [choice.answer.tokens[choice.num_sent - 1]] if ids else None
        chunk = _head(job, "chatcmpl", "chat.completion.chunk", [data])
        if job.asked.usage_each_chunk:
            chunk["usage"] = _counts(_of(choice)) | {"completion_tokens_details": None}
        if choice.is_done and not job.asked.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return sse(chunk)

    def closing(self, job: HttpJob, usage: TokenCounts) -> bytes:
        if not job.asked.include_usage:
            return DONE
        counts = _counts(usage)
        if usage.cached is not None:
            counts["prompt_tokens_details"] = {"cached_tokens": usage.cached, "created_cache_tokens": 0}
        last = _head(job, "chatcmpl", "chat.completion.chunk", [])
        return sse(last | {"usage": counts, "system_fingerprint": FINGERPRINT}) + DONE

    def _choice(self, job: HttpJob, choice: JobChoice) -> Json:
        nones = ("refusal", "annotations", "audio", "function_call", "reasoning")
        answer = choice.answer
        message = {"role": "assistant", "content": choice.text} | dict.fromkeys(nones)
        if answer.calls:
            calls = [_call(call, answer.arguments(call)) for call in answer.calls]
            message |= {"content": None, "tool_calls": calls}
        return {
            "index": choice.index,
            "message": message,
            "logprobs": chat_logprobs(job, choice, 0, len(answer.tokens)),
            "finish_reason": choice.chat_finish,
            "stop_reason": choice.answer.stop_reason,
            "token_ids": choice.answer.tokens.tolist() if job.asked.return_token_ids else None,
            "routed_experts": None,
        }


def _head(job: HttpJob, prefix: str, kind: str, choices: list[Json]) -> Json:
    return {
        "id": f"{prefix}-{job.request_id}",
        "object": kind,
        "created": job.created,
        "model": job.asked.model,
        "choices": choices,
    }


def _call(call: ToolCall, arguments: str) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _delta(choice: JobChoice) -> Json:
    """Delta of the token just produced: text, or a part of a call's arguments; the first names the call."""
    if (found := choice.last_call) is None:
        return {"content": choice.last_piece}
    index, call = found
    if choice.num_sent - 1 == call.start:
        return {"tool_calls": [{"index": index} | _call(call, choice.last_piece)]}
    return {"tool_calls": [{"index": index, "function": {"arguments": choice.last_piece}}]}


def chat_logprobs(job: HttpJob, choice: JobChoice, start: int, end: int) -> Json | None:
    """Log probabilities of some tokens of a chat, with the alternatives that the client wants."""
    if (num := job.asked.num_logprobs) is None:
        return None
    content = []
    for each in alternatives(choice.answer, start, end, num):
        items = [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in each]
        content.append(items[0] | {"top_logprobs": items[:num]})
    return {"content": content}


def completion_logprobs(job: HttpJob, choice: JobChoice, start: int, end: int) -> Json | None:
    """The same in the form of completions."""
    if (num := job.asked.num_logprobs) is None:
        return None
    rows = alternatives(choice.answer, start, end, num)
    before = [0, *accumulate(map(len, choice.answer.pieces))]
    return {
        "text_offset": before[start:end],
        "tokens": [row[0][0] for row in rows],
        "token_logprobs": [row[0][1] for row in rows],
        "top_logprobs": [dict(row[: max(1, num)]) for row in rows],
    }


def alternatives(answer: GeneratedText, start: int, end: int, num: int) -> list[list[tuple[str, float]]]:
    """Tokens with invented log probabilities: the one produced, then others of the same answer."""
    rows = []
    for number in range(start, end):
        first = -0.01 * (answer.tokens[number] % 50 + 1)
        texts = dict.fromkeys([*answer.pieces[number:], *answer.pieces[:number]])
        rows.append([(text, first - rank) for rank, text in enumerate(texts)][: max(1, num)])
    return rows


def _of(choice: JobChoice) -> TokenCounts:
    return TokenCounts(len(choice.prompt), choice.num_sent, None)


def _stop_reason(choice: JobChoice) -> str | None:
    return choice.answer.stop_reason if choice.is_done else None
