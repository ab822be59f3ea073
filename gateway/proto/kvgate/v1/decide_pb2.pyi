from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionRequest(_message.Message):
    __slots__ = ("tag", "decide", "report")
    TAG_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    tag: int
    decide: DecideRequest
    report: ReportRequest
    def __init__(self, tag: _Optional[int] = ..., decide: _Optional[_Union[DecideRequest, _Mapping]] = ..., report: _Optional[_Union[ReportRequest, _Mapping]] = ...) -> None: ...

class SessionReply(_message.Message):
    __slots__ = ("tag", "decide", "report")
    TAG_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    tag: int
    decide: DecideReply
    report: ReportReply
    def __init__(self, tag: _Optional[int] = ..., decide: _Optional[_Union[DecideReply, _Mapping]] = ..., report: _Optional[_Union[ReportReply, _Mapping]] = ...) -> None: ...

class HttpField(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class DecideRequest(_message.Message):
    __slots__ = ("path", "method", "headers", "body", "model", "token_ids", "exclude", "num_fallbacks", "with_prefill", "max_queue_ms")
    PATH_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    NUM_FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    WITH_PREFILL_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    path: str
    method: str
    headers: _containers.RepeatedCompositeFieldContainer[HttpField]
    body: bytes
    model: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    exclude: _containers.RepeatedScalarFieldContainer[str]
    num_fallbacks: int
    with_prefill: bool
    max_queue_ms: int
    def __init__(self, path: _Optional[str] = ..., method: _Optional[str] = ..., headers: _Optional[_Iterable[_Union[HttpField, _Mapping]]] = ..., body: _Optional[bytes] = ..., model: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., exclude: _Optional[_Iterable[str]] = ..., num_fallbacks: _Optional[int] = ..., with_prefill: _Optional[bool] = ..., max_queue_ms: _Optional[int] = ...) -> None: ...

class DecideReply(_message.Message):
    __slots__ = ("decided", "queued", "rejected")
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    decided: Decided
    queued: Queued
    rejected: Rejected
    def __init__(self, decided: _Optional[_Union[Decided, _Mapping]] = ..., queued: _Optional[_Union[Queued, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("worker", "address", "url", "dp_rank")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    worker: str
    address: str
    url: str
    dp_rank: int
    def __init__(self, worker: _Optional[str] = ..., address: _Optional[str] = ..., url: _Optional[str] = ..., dp_rank: _Optional[int] = ...) -> None: ...

class Decided(_message.Message):
    __slots__ = ("decision_id", "target", "num_tokens", "overlap_tokens", "overlap_blocks", "predicted_ttft_s", "reason", "fallbacks", "prefill", "set_headers", "remove_headers", "path", "body", "expires_s")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TTFT_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    SET_HEADERS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_HEADERS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    target: Target
    num_tokens: int
    overlap_tokens: int
    overlap_blocks: int
    predicted_ttft_s: float
    reason: str
    fallbacks: _containers.RepeatedCompositeFieldContainer[Target]
    prefill: Target
    set_headers: _containers.RepeatedCompositeFieldContainer[HttpField]
    remove_headers: _containers.RepeatedScalarFieldContainer[str]
    path: str
    body: bytes
    expires_s: float
    def __init__(self, decision_id: _Optional[str] = ..., target: _Optional[_Union[Target, _Mapping]] = ..., num_tokens: _Optional[int] = ..., overlap_tokens: _Optional[int] = ..., overlap_blocks: _Optional[int] = ..., predicted_ttft_s: _Optional[float] = ..., reason: _Optional[str] = ..., fallbacks: _Optional[_Iterable[_Union[Target, _Mapping]]] = ..., prefill: _Optional[_Union[Target, _Mapping]] = ..., set_headers: _Optional[_Iterable[_Union[HttpField, _Mapping]]] = ..., remove_headers: _Optional[_Iterable[str]] = ..., path: _Optional[str] = ..., body: _Optional[bytes] = ..., expires_s: _Optional[float] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("retry_after_s",)
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    retry_after_s: float
    def __init__(self, retry_after_s: _Optional[float] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("status", "code", "message", "retry_after_s", "headers", "body")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    status: int
    code: str
    message: str
    retry_after_s: int
    headers: _containers.RepeatedCompositeFieldContainer[HttpField]
    body: bytes
    def __init__(self, status: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_s: _Optional[int] = ..., headers: _Optional[_Iterable[_Union[HttpField, _Mapping]]] = ..., body: _Optional[bytes] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("decision_id", "first_token", "finished", "failed")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    first_token: FirstToken
    finished: Finished
    failed: Failed
    def __init__(self, decision_id: _Optional[str] = ..., first_token: _Optional[_Union[FirstToken, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Finished(_message.Message):
    __slots__ = ("status", "usage", "retry_after", "error_body")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    ERROR_BODY_FIELD_NUMBER: _ClassVar[int]
    status: int
    usage: Usage
    retry_after: str
    error_body: bytes
    def __init__(self, status: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., retry_after: _Optional[str] = ..., error_body: _Optional[bytes] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "output_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("cause", "reason")
    class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CLIENT: _ClassVar[Failed.Cause]
        WORKER: _ClassVar[Failed.Cause]
    CLIENT: Failed.Cause
    WORKER: Failed.Cause
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    cause: Failed.Cause
    reason: str
    def __init__(self, cause: _Optional[_Union[Failed.Cause, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("result",)
    class Result(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        APPLIED: _ClassVar[ReportReply.Result]
        REPEATED: _ClassVar[ReportReply.Result]
        UNKNOWN: _ClassVar[ReportReply.Result]
    APPLIED: ReportReply.Result
    REPEATED: ReportReply.Result
    UNKNOWN: ReportReply.Result
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: ReportReply.Result
    def __init__(self, result: _Optional[_Union[ReportReply.Result, str]] = ...) -> None: ...
