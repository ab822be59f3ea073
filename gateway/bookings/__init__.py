"""Bookings shared between gateways through Redis, and decisions one at a time.

    ledger, assumed index ─ changes ─► Publisher ─► PUBLISH ─┐       others do the same
    last row of the table ◄─ RemoteHosts ◄─ SUBSCRIBE ◄──────┴─────────────┘

Each process publishes its own bookings: changes at once, or at the end of the loop iteration, at most one
message a millisecond, and a snapshot once a second. One process per host subscribes for all of them, and
writes other hosts' bookings into the table that they share; a process alone has a table of its own. Nothing
is stored in Redis, and nothing waits for it: without it each host goes on with its own bookings, and others'
end in seconds.

publisher  messages to publish        pubsub  to Redis and back      sync  both, and their lifecycle
atomic_lock  one gateway decides at a time (`--booking atomic`)    time_slice  its decisions then
shared_memory   memory of a host's processes     shared_ledger, shared_assumed   load and blocks in it
remote_hosts    other hosts' bookings            unconfirmed     published, not yet echoed by Redis
promises        blocks that will be cached       tenant_usage    quota usage of tenants
acl_check       Redis permissions                metrics         metrics
"""
