"""Other generating APIs in minimal form: /v1/responses, /v1/messages, /inference/v1/generate."""

from collections.abc import Sequence
from typing import Any

from engines.sim.job import HttpJob, JobChoice, TokenCounts
from engines.sim.openai import Json, sse, whole_usage
from engines.sim.params import ApiError, Body

TEXT_PARTS = ("text", "input_text", "output_text")


def responses_messages(body: Body) -> list[Json]:
    """Chat messages of a /v1/responses body. Raises ApiError for items that are no messages."""
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise ApiError("input must be text or a list of items", param="input")
    system = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    return system + [_message(item) for item in items]


def anthropic_messages(body: Body) -> list[Json]:
    """Chat messages of a /v1/messages body."""
    system = body.get("system")
    head = [{"role": "system", "content": _content(system)}] if system else []
    return head + [_message(item) for item in body["messages"]]


def _message(item: Any) -> Json:
    if not isinstance(item, dict) or "role" not in item or "content" not in item:
        raise ApiError("only messages with role and content are understood", param="input")
    return {"role": item["role"], "content": _content(item["content"])}


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or any(part.get("type") not in TEXT_PARTS for part in content):
        raise ApiError("only text content is understood", param="messages")
    return [{"type": "text", "text": part["text"]} for part in content]


class Responses:
    """Responses of /v1/responses: one output message with one text part."""

    def __init__(self) -> None:
        self._sequence_number = 0

    def unstreamed(self, job: HttpJob, usage: TokenCounts) -> Json:
        choice = job.choices[0]
        is_cut = choice.answer.finish == "length"
        data = self._response(job, "incomplete" if is_cut else "completed")
        data["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        data["output"] = [self._item(job, [self._part(choice.text)], "completed")]
        data["usage"] = self._usage(usage)
        return data

    def opening(self, job: HttpJob, usage: TokenCounts) -> bytes:
        response = {"response": self._response(job, "in_progress")}
        item = {"item": self._item(job, [], "in_progress"), "output_index": 0}
        part = self._at(job) | {"part": self._part("")}
        return b"".join(
            (
                self._event("response.created", response),
                self._event("response.in_progress", response),
                self._event("response.output_item.added", item),
                self._event("response.content_part.added", part),
            )
        )

    def chunk(self, job: HttpJob, choice: JobChoice, usage: TokenCounts) -> bytes:
        if not choice.last_piece:
            return b""
        delta = self._at(job) | {"delta": choice.last_piece, "logprobs": []}
        return self._event("response.output_text.delta", delta)

    def closing(self, job: HttpJob, usage: TokenCounts) -> bytes:
        text = job.choices[0].text
        item = self._item(job, [self._part(text)], "completed")
        whole = self.unstreamed(job, usage)
        return b"".join(
            (
                self._event("response.output_text.done", self._at(job) | {"text": text, "logprobs": []}),
                self._event("response.content_part.done", self._at(job) | {"part": self._part(text)}),
                self._event("response.output_item.done", {"item": item, "output_index": 0}),
                self._event(f"response.{whole['status']}", {"response": whole}),
            )
        )

    def _event(self, kind: str, data: Json) -> bytes:
        numbered = data | {"sequence_number": self._sequence_number, "type": kind}
        self._sequence_number += 1
        return sse(numbered, kind)

    def _response(self, job: HttpJob, status: str) -> Json:
        return {
            "id": f"resp_{job.request_id}",
            "created_at": job.created,
            "object": "response",
            "model": job.asked.model,
            "status": status,
            "output": [],
            "incomplete_details": None,
            "parallel_tool_calls": True,
            "tool_choice": "none",
            "tools": [],
            "usage": None,
        }

    def _item(self, job: HttpJob, content: Sequence[Json], status: str) -> Json:
        item = {"id": f"msg_{job.request_id}", "type": "message", "role": "assistant"}
        return item | {"content": content, "status": status}

    def _part(self, text: str) -> Json:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}

    def _at(self, job: HttpJob) -> Json:
        return {"content_index": 0, "item_id": f"msg_{job.request_id}", "output_index": 0}

    def _usage(self, usage: TokenCounts) -> Json:
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached or 0},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total,
        }


class AnthropicMessages:
    """Responses of /v1/messages (Anthropic): one text block."""

    def unstreamed(self, job: HttpJob, usage: TokenCounts) -> Json:
        choice = job.choices[0]
        head = self._head(job) | {"content": [{"type": "text", "text": choice.text}]}
        return head | self._ending(choice) | {"usage": self._usage(usage)}

    def opening(self, job: HttpJob, usage: TokenCounts) -> bytes:
        counts = {"input_tokens": usage.prompt, "output_tokens": 0}
        message = self._head(job) | {"content": [], "stop_reason": None, "stop_sequence": None}
        start = {"type": "message_start", "message": message | {"usage": counts}}
        block = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
        return sse(start, "message_start") + sse(block, "content_block_start")

    def chunk(self, job: HttpJob, choice: JobChoice, usage: TokenCounts) -> bytes:
        if not choice.last_piece:
            return b""
        delta = {"type": "text_delta", "text": choice.last_piece}
        return sse({"type": "content_block_delta", "delta": delta, "index": 0}, "content_block_delta")

    def closing(self, job: HttpJob, usage: TokenCounts) -> bytes:
        ending = {"type": "message_delta", "delta": self._ending(job.choices[0]), "usage": self._usage(usage)}
        stop = sse({"type": "content_block_stop", "index": 0}, "content_block_stop")
        return stop + sse(ending, "message_delta") + sse({"type": "message_stop"}, "message_stop")

    def _head(self, job: HttpJob) -> Json:
        name = {"id": f"chatcmpl-{job.request_id}", "type": "message", "role": "assistant"}
        return name | {"model": job.asked.model}

    def _ending(self, choice: JobChoice) -> Json:
        answer = choice.answer
        if answer.stop_reason is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop_reason}
        reason = "end_turn" if answer.finish == "stop" else "max_tokens"
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self, usage: TokenCounts) -> Json:
        counts = {"input_tokens": usage.prompt, "output_tokens": usage.completion}
        if usage.cached is None:
            return counts
        return counts | {"cache_creation_input_tokens": 0, "cache_read_input_tokens": usage.cached}


class Generate:
    """Responses of /inference/v1/generate: tokens in, tokens out, at once."""

    def unstreamed(self, job: HttpJob, usage: TokenCounts) -> Json:
        return {
            "request_id": f"generate-tokens-{job.request_id}",
            "model": job.asked.model,
            "created": job.created,
            "usage": whole_usage(usage, None),
            "output_mode": "tokens",
            "choices": [self._choice(choice) for choice in job.choices],
        }

    def _choice(self, choice: JobChoice) -> Json:
        ending = {"finish_reason": choice.answer.finish, "stop_reason": choice.answer.stop_reason}
        return {"index": choice.index} | ending | {"token_ids": choice.answer.tokens.tolist()}
