"""Replication of each worker's KV state: from an agent over gRPC, or between gateways through Redis.

A leader reads the worker's events and writes a log with snapshots; followers apply it to their index.

agent_feed   a worker's log from its agent         replica_feed   leader or follower, with Redis
leader       events into the log                   follower       the log into the index
journal      log and snapshot, in memory           redis_log      the same in Redis, behind a lease
takeover     a new leader reads the old one's log  tree_feed      the index that lies in Redis itself
codec        messages as bytes                     messages       replicated values
rank_store   inventory and journal of an endpoint  applier        updates of one worker into the index
log_writer   the journal into Redis                redis_tail     the logs of all followed workers
session      the workers of one gateway            redis_link     its connections to Redis
agent_feeds  workers that have an agent            agent_targets  addresses, credentials
metrics, tree_metrics   metrics
"""

import os

# gRPC reads this when it is loaded. Its lines on stderr only repeat exceptions that are logged once.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
