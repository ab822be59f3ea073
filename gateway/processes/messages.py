"""What a supervisor and its processes say to each other on their channel (`server/fd_channel.py`).

supervisor                              process
Begin, the shared memory ─────────────►  loads, starts, warms up
                         ◄─────────────  Ready; or Refused, and it ends
Client, AdminClient, each a connection ► serves it; counts those that it has closed in the memory
                         ◄─────────────  Leaving: give me no more (it was asked to stop by itself)
Prepare ──────────────────────────────►  another configuration: can it be taken?
                         ◄─────────────  Prepared
Change ───────────────────────────────►  takes it
Drain ────────────────────────────────►  finishes what it has and ends; the end of the channel, too
"""

import msgspec

from gateway.config import Config


class Begin(msgspec.Struct, tag=True):
    """`row` of `num_rows` is its own. The configuration names the workers of now. It is ready when it has
    asked them and caught up with their events, or after `warm_up_s`. `policy_source` is the text of the
    policy file as the other processes have it, `drains` is as in `discovery.said`."""

    config: Config
    row: int
    num_rows: int
    warm_up_s: float
    policy_source: str | None = None
    drains: list[tuple[str, bool]] = []


class Client(msgspec.Struct, tag=True):
    """A client's connection, which comes with it."""


class AdminClient(msgspec.Struct, tag=True):
    """A connection to the admin API, which comes with it."""


class Drain(msgspec.Struct, tag=True):
    """Finish in `seconds`. `is_leaving`: others answer from now on, so idle connections are not cut."""

    seconds: float
    is_leaving: bool


class Prepare(msgspec.Struct, tag=True):
    """Make what this configuration needs, and say `Prepared`; nothing changes yet. `number` tells it from
    others. Workers that it adds and drops are named as they are given."""

    number: int
    config: Config
    added: list[str]
    dropped: list[str]
    policy_source: str | None = None


class Change(msgspec.Struct, tag=True):
    """Take what was prepared under that number."""

    number: int


class Prepared(msgspec.Struct, tag=True):
    """Whether it can be taken: None, or why not."""

    refusal: str | None = None


class Ready(msgspec.Struct, tag=True):
    pass


class Refused(msgspec.Struct, tag=True):
    """The configuration cannot be used."""

    reason: str


class Leaving(msgspec.Struct, tag=True):
    pass


ToProcess = Begin | Client | AdminClient | Drain | Prepare | Change
ToSupervisor = Ready | Refused | Leaving | Prepared

encode = msgspec.msgpack.Encoder().encode
decode_to_process = msgspec.msgpack.Decoder(ToProcess).decode
decode_to_supervisor = msgspec.msgpack.Decoder(ToSupervisor).decode

CLIENT = encode(Client())
ADMIN_CLIENT = encode(AdminClient())
