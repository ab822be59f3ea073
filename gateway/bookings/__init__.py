"""Bookings that gateways tell each other by way of Redis, and decisions in turn.

    ledger, assumed index ─ what changes ─► Teller ─► PUBLISH ─┐       others do the same
    last row of the table ◄─ Abroad (core) ◄─ SUBSCRIBE ◄──────┴─────────────┘

Each process tells what it has booked itself: changes at once, or at the end of the loop's turn, at most one
message a millisecond, and all of it once a second. One process of a host hears, for all of them, and writes
what it hears into the table that they share; a process alone has a table of its own. Nothing is kept in
Redis, and nothing waits for it: without it each host goes on with its own bookings, and others' end in
seconds.

teller  what is said     line   to Redis and back    shared  both, and their life
turns   one gateway decides at a time (`--booking atomic`)
"""
