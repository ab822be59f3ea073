"""Messages between a supervisor and its processes on their channel (`server/fd_channel.py`).

supervisor                              process
Begin, the shared memory ─────────────►  loads, starts, warms up
                          ◄─────────────  Ready; or Refused, and it ends
Client, AdminClient, each a connection ► serves it; counts those that it has closed in the memory
                          ◄─────────────  Leaving: no more connections (it received a signal itself)
RelayedReport, to others ◄────────────►  a decision's report that reached another process than the decision
Reported, to that one ◄───────────────►  the process with the decision has applied it
Prepare ──────────────────────────────►  another configuration: can it be applied?
                          ◄─────────────  Prepared
Change ───────────────────────────────►  applies it
Drain ────────────────────────────────►  finishes open requests and ends; the end of the channel, too
"""

import msgspec

from gateway.config import Config


class Begin(msgspec.Struct, tag=True):
    """Start of a process with `row` of `num_rows`. The configuration names the current workers. It is ready
    when it has probed them and caught up with their events, or after `warm_up_s`. `policy_source` is the text
    of the policy file as the other processes have it, `drains` is as in the declared workers."""

    config: Config
    row: int
    num_rows: int
    warm_up_s: float
    policy_source: str | None = None
    drains: list[tuple[str, bool]] = []


class NewClient(msgspec.Struct, tag=True):
    """Connection of a client, passed with the message."""


class NewAdminClient(msgspec.Struct, tag=True):
    """Connection to the admin API, passed with the message."""


class Drain(msgspec.Struct, tag=True):
    """Drain within `seconds`. `is_leaving`: another gateway accepts from now on, so idle connections are not
    closed."""

    seconds: float
    is_leaving: bool


class Prepare(msgspec.Struct, tag=True):
    """Prepare a configuration and reply `Prepared`; nothing changes yet. `number` identifies it. Workers that
    it adds and drops are named as in the options."""

    number: int
    config: Config
    added: list[str]
    dropped: list[str]
    policy_source: str | None = None


class Change(msgspec.Struct, tag=True):
    """Apply the configuration that was prepared under that number."""

    number: int


class Prepared(msgspec.Struct, tag=True):
    """Reply to Prepare: None if the configuration can be applied, or the reason why not."""

    refusal: str | None = None


class RelayedReport(msgspec.Struct, tag=True):
    """Report of a decision that process `origin` does not know; `number` is the origin's own."""

    origin: int
    number: int
    report: bytes


class Reported(msgspec.Struct, tag=True):
    """Result of a RelayedReport, by the process with the decision."""

    origin: int
    number: int
    result: int


class Ready(msgspec.Struct, tag=True):
    pass


class ConfigRejected(msgspec.Struct, tag=True):
    """Rejection of a configuration that cannot be used, or with which a component did not start."""

    reason: str


class DrainNotice(msgspec.Struct, tag=True):
    pass


ToProcess = Begin | NewClient | NewAdminClient | Drain | Prepare | Change | RelayedReport | Reported
ToSupervisor = Ready | ConfigRejected | DrainNotice | Prepared | RelayedReport | Reported

encode = msgspec.msgpack.Encoder().encode
decode_to_process = msgspec.msgpack.Decoder(ToProcess).decode
decode_to_supervisor = msgspec.msgpack.Decoder(ToSupervisor).decode

CLIENT = encode(NewClient())
ADMIN_CLIENT = encode(NewAdminClient())
