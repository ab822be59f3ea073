"""Bookings that gateways tell each other by way of Redis, and decisions in turn.

    ledger, assumed index ─ what changes ─► Publisher ─► PUBLISH ─┐       others do the same
    last row of the table ◄─ Abroad (core) ◄─ SUBSCRIBE ◄──────┴─────────────┘

Each process tells what it has booked itself: changes at once, or at the end of the loop's turn, at most one
message a millisecond, and all of it once a second. One process of a host hears, for all of them, and writes
what it hears into the table that they share; a process alone has a table of its own. Nothing is kept in
Redis, and nothing waits for it: without it each host goes on with its own bookings, and others' end in
seconds.

publisher  what is published      pubsub  to Redis and back      sync  both, and their life
atomic_lock  one gateway decides at a time (`--booking atomic`)
"""
