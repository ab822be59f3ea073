"""Ingestion of KV events, from a worker's publisher into the index.

base           the interface of a feed             zmq, poll        feeds over ZeroMQ and HTTP
subscription   decodes, orders and applies events  sockets          ZeroMQ sockets with bounds
chunks         large events in pieces              time_slices      fair shares of the event loop
unread_bytes   bounds on received bytes            pauses           pauses after too many events
endpoint_validation   addresses that engines report   blind_recovery   drives the recovery of BLIND streams
tier_chunks    chunks of offload tiers in blocks   block_size       the block size that events show
ownership      proof that events are the worker's own
"""
