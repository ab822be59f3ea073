"""Table `[warming]`: hot prefixes for workers that join."""

from typing import Annotated

from gateway.config.options import AT_ONCE, Section, option


class WarmingSection(Section, frozen=True):
    share: Annotated[
        float,
        option(
            "Share of the KV cache of a joining or restarted worker, from 0 to 1, that kvgate may fill with "
            "the hottest prefixes, by requests of its own while the worker is idle. kvgate then "
            "keeps the token ids of prefixes that several requests shared. 0: none are sent or kept.",
            "",
            ge=0,
            le=1,
            live=AT_ONCE,
            is_rare=True,
        ),
    ] = 0.0
    max_prefixes: Annotated[
        int,
        option(
            "Most prefixes that one worker is sent when it joins.",
            "prefixes",
            ge=1,
            le=1000,
            live=AT_ONCE,
            is_rare=True,
        ),
    ] = 16
    max_s: Annotated[
        float,
        option(
            "Time after a worker joins in which it is sent prefixes.",
            "seconds",
            gt=0,
            live=AT_ONCE,
            is_rare=True,
        ),
    ] = 30.0
    hold_s: Annotated[
        float,
        option(
            "Time after a worker joins in which it gets no requests while it is sent prefixes, and others "
            "can answer.",
            "seconds",
            ge=0,
            live=AT_ONCE,
            is_rare=True,
        ),
    ] = 5.0
    keep_bytes: Annotated[
        int,
        option(
            "Memory for the hashes and token ids of prefixes; the least recently used ones are forgotten "
            "first.",
            "bytes",
            ge=65536,
            live=AT_ONCE,
            is_rare=True,
        ),
    ] = 16 << 20
    keep_s: Annotated[
        float,
        option(
            "Time after its last request in which a prefix is kept.",
            "seconds",
            gt=0,
            live=AT_ONCE,
            is_rare=True,
        ),
    ] = 600.0
