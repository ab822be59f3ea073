from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("version", "dp_rank")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    version: int
    dp_rank: int
    def __init__(self, version: _Optional[int] = ..., dp_rank: _Optional[int] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("version", "dp_rank", "epoch", "next_seq", "sample_every_s")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQ_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_EVERY_S_FIELD_NUMBER: _ClassVar[int]
    version: int
    dp_rank: int
    epoch: int
    next_seq: int
    sample_every_s: int
    def __init__(self, version: _Optional[int] = ..., dp_rank: _Optional[int] = ..., epoch: _Optional[int] = ..., next_seq: _Optional[int] = ..., sample_every_s: _Optional[int] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("hello", "snapshot", "batch", "status", "sample")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    snapshot: SnapshotPart
    batch: Batch
    status: Status
    sample: Sample
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., snapshot: _Optional[_Union[SnapshotPart, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., sample: _Optional[_Union[Sample, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "agent", "engine_url", "start_time_s", "dp_rank", "block_size", "root", "status", "num_blocks")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    START_TIME_S_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    version: int
    agent: str
    engine_url: str
    start_time_s: float
    dp_rank: int
    block_size: int
    root: int
    status: Status
    num_blocks: int
    def __init__(self, version: _Optional[int] = ..., agent: _Optional[str] = ..., engine_url: _Optional[str] = ..., start_time_s: _Optional[float] = ..., dp_rank: _Optional[int] = ..., block_size: _Optional[int] = ..., root: _Optional[int] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class SnapshotPart(_message.Message):
    __slots__ = ("epoch", "next_seq", "part", "is_last", "changes", "position")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQ_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    next_seq: int
    part: int
    is_last: bool
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    position: Position
    def __init__(self, epoch: _Optional[int] = ..., next_seq: _Optional[int] = ..., part: _Optional[int] = ..., is_last: _Optional[bool] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("epoch", "seq", "changes", "position")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    position: Position
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("next_seq", "digest", "ts")
    NEXT_SEQ_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    next_seq: int
    digest: int
    ts: float
    def __init__(self, next_seq: _Optional[int] = ..., digest: _Optional[int] = ..., ts: _Optional[float] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("state", "reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Status.State]
        EXACT: _ClassVar[Status.State]
        CATCHING_UP: _ClassVar[Status.State]
        BLIND: _ClassVar[Status.State]
    STATE_UNSPECIFIED: Status.State
    EXACT: Status.State
    CATCHING_UP: Status.State
    BLIND: Status.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    state: Status.State
    reason: str
    def __init__(self, state: _Optional[_Union[Status.State, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("epoch", "next_seq", "num_blocks", "path")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQ_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    next_seq: int
    num_blocks: int
    path: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., next_seq: _Optional[int] = ..., num_blocks: _Optional[int] = ..., path: _Optional[_Iterable[int]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("stored", "copied", "removed", "cleared", "grouped")
    STORED_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    GROUPED_FIELD_NUMBER: _ClassVar[int]
    stored: Stored
    copied: Copied
    removed: Removed
    cleared: Cleared
    grouped: Grouped
    def __init__(self, stored: _Optional[_Union[Stored, _Mapping]] = ..., copied: _Optional[_Union[Copied, _Mapping]] = ..., removed: _Optional[_Union[Removed, _Mapping]] = ..., cleared: _Optional[_Union[Cleared, _Mapping]] = ..., grouped: _Optional[_Union[Grouped, _Mapping]] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("blocks", "names", "parent", "parent_block", "medium", "group")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PARENT_BLOCK_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    names: _containers.RepeatedScalarFieldContainer[int]
    parent: int
    parent_block: int
    medium: str
    group: int
    def __init__(self, blocks: _Optional[_Iterable[int]] = ..., names: _Optional[_Iterable[int]] = ..., parent: _Optional[int] = ..., parent_block: _Optional[int] = ..., medium: _Optional[str] = ..., group: _Optional[int] = ...) -> None: ...

class Copied(_message.Message):
    __slots__ = ("names", "medium", "group")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[int]
    medium: str
    group: int
    def __init__(self, names: _Optional[_Iterable[int]] = ..., medium: _Optional[str] = ..., group: _Optional[int] = ...) -> None: ...

class Removed(_message.Message):
    __slots__ = ("names", "medium", "group")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[int]
    medium: str
    group: int
    def __init__(self, names: _Optional[_Iterable[int]] = ..., medium: _Optional[str] = ..., group: _Optional[int] = ...) -> None: ...

class Cleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Grouped(_message.Message):
    __slots__ = ("names", "medium", "group", "kind", "block_size", "window")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[int]
    medium: str
    group: int
    kind: str
    block_size: int
    window: int
    def __init__(self, names: _Optional[_Iterable[int]] = ..., medium: _Optional[str] = ..., group: _Optional[int] = ..., kind: _Optional[str] = ..., block_size: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...
