"""Other generating APIs in minimal form: /v1/responses, /v1/messages, /inference/v1/generate."""

from collections.abc import Sequence

import msgspec

from engines.sim.job import HttpJob, JobChoice, TokenCounts
from engines.sim.openai import Json, sse, whole_usage
from engines.sim.words import ToolCall


class Responses:
    """Responses of /v1/responses: one output message with one text part."""

    def __init__(self) -> None:
        self._sequence_number = 0

    def unstreamed(self, job: HttpJob, usage: TokenCounts) -> Json:
        choice = job.choices[0]
        is_cut = choice.answer.finish == "length"
        data = self._response(job, "incomplete" if is_cut else "completed")
        data["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        data["output"] = self._output(job)
        data["usage"] = self._usage(usage)
        return data

    def opening(self, job: HttpJob, usage: TokenCounts) -> bytes:
        response = {"response": self._response(job, "in_progress")}
        begun = [
            self._event("response.created", response),
            self._event("response.in_progress", response),
        ]
        if not job.choices[0].answer.calls:
            item = {"item": self._item(job, [], "in_progress"), "output_index": 0}
            part = self._at(job) | {"part": self._part("")}
            begun.append(self._event("response.output_item.added", item))
            begun.append(self._event("response.content_part.added", part))
        return b"".join(begun)

    def chunk(self, job: HttpJob, choice: JobChoice, usage: TokenCounts) -> bytes:
        if choice.last_call is not None:
            return self._call_chunk(choice, *choice.last_call)
        if not choice.last_piece:
            return b""
        delta = self._at(job) | {"delta": choice.last_piece, "logprobs": []}
        return self._event("response.output_text.delta", delta)

    def _call_chunk(self, choice: JobChoice, index: int, call: ToolCall) -> bytes:
        """Events of a token of a call: the first one opens its item, the last one completes it."""
        answer, number, events = choice.answer, choice.num_sent - 1, b""
        at: Json = {"item_id": f"fc_{call.id}", "output_index": index}
        if number == call.start:
            item = call_item(call, "", "in_progress")
            events += self._event("response.output_item.added", {"item": item, "output_index": index})
        events += self._event("response.function_call_arguments.delta", at | {"delta": choice.last_piece})
        if number in (call.end - 1, len(answer.tokens) - 1):
            arguments = answer.arguments(call)
            done = at | {"arguments": arguments, "name": call.name}
            item = call_item(call, arguments, "completed")
            events += self._event("response.function_call_arguments.done", done)
            events += self._event("response.output_item.done", {"item": item, "output_index": index})
        return events

    def closing(self, job: HttpJob, usage: TokenCounts) -> bytes:
        if job.choices[0].answer.calls:
            whole = self.unstreamed(job, usage)
            return self._event(f"response.{whole['status']}", {"response": whole})
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

    def _output(self, job: HttpJob) -> list[Json]:
        answer = job.choices[0].answer
        if answer.calls:
            return [call_item(call, answer.arguments(call), "completed") for call in answer.calls]
        return [self._item(job, [self._part(job.choices[0].text)], "completed")]

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


def call_item(call: ToolCall, arguments: str, status: str) -> Json:
    """Function call as an item of a response."""
    item = {"id": f"fc_{call.id}", "type": "function_call", "call_id": call.id, "name": call.name}
    return item | {"arguments": arguments, "status": status}


class AnthropicMessages:
    """Responses of /v1/messages (Anthropic): one text block, or a block for each tool that is called."""

    def unstreamed(self, job: HttpJob, usage: TokenCounts) -> Json:
        choice = job.choices[0]
        head = self._head(job) | {"content": self._content(choice)}
        return head | self._ending(choice) | {"usage": self._usage(usage)}

    def opening(self, job: HttpJob, usage: TokenCounts) -> bytes:
        counts = {"input_tokens": usage.prompt, "output_tokens": 0}
        message = self._head(job) | {"content": [], "stop_reason": None, "stop_sequence": None}
        start = {"type": "message_start", "message": message | {"usage": counts}}
        begun = sse(start, "message_start")
        if job.choices[0].answer.calls:
            return begun
        block = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
        return begun + sse(block, "content_block_start")

    def chunk(self, job: HttpJob, choice: JobChoice, usage: TokenCounts) -> bytes:
        if choice.last_call is not None:
            return self._call_chunk(choice, *choice.last_call)
        if not choice.last_piece:
            return b""
        delta = {"type": "text_delta", "text": choice.last_piece}
        return sse({"type": "content_block_delta", "delta": delta, "index": 0}, "content_block_delta")

    def closing(self, job: HttpJob, usage: TokenCounts) -> bytes:
        ending = {"type": "message_delta", "delta": self._ending(job.choices[0]), "usage": self._usage(usage)}
        stop = sse({"type": "content_block_stop", "index": 0}, "content_block_stop")
        if job.choices[0].answer.calls:
            stop = b""
        return stop + sse(ending, "message_delta") + sse({"type": "message_stop"}, "message_stop")

    def _call_chunk(self, choice: JobChoice, index: int, call: ToolCall) -> bytes:
        """Events of a token of a call: the first one opens its block, the last one closes it."""
        number, events = choice.num_sent - 1, b""
        if number == call.start:
            block = tool_use(call, {})
            start = {"type": "content_block_start", "content_block": block, "index": index}
            events += sse(start, "content_block_start")
        delta = {"type": "input_json_delta", "partial_json": choice.last_piece}
        events += sse({"type": "content_block_delta", "delta": delta, "index": index}, "content_block_delta")
        if number in (call.end - 1, len(choice.answer.tokens) - 1):
            events += sse({"type": "content_block_stop", "index": index}, "content_block_stop")
        return events

    def _content(self, choice: JobChoice) -> list[Json]:
        answer = choice.answer
        if answer.calls:
            return [tool_use(call, _decoded(answer.arguments(call))) for call in answer.calls]
        return [{"type": "text", "text": choice.text}]

    def _head(self, job: HttpJob) -> Json:
        name = {"id": f"chatcmpl-{job.request_id}", "type": "message", "role": "assistant"}
        return name | {"model": job.asked.model}

    def _ending(self, choice: JobChoice) -> Json:
        answer = choice.answer
        if answer.stop_reason is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop_reason}
        finished = "tool_use" if answer.calls else "end_turn"
        reason = finished if answer.finish == "stop" else "max_tokens"
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self, usage: TokenCounts) -> Json:
        """Counts in Anthropic's form: `input_tokens` leave out the cached ones."""
        counts = {"input_tokens": usage.prompt - (usage.cached or 0), "output_tokens": usage.completion}
        if usage.cached is None:
            return counts
        return counts | {"cache_creation_input_tokens": 0, "cache_read_input_tokens": usage.cached}


def tool_use(call: ToolCall, arguments: Json) -> Json:
    """Tool call as a block of a message."""
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _decoded(arguments: str) -> Json:
    """Arguments as an object; none where `max_tokens` cut them."""
    try:
        found = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


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
