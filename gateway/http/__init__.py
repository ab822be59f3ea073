"""HTTP as values: messages, framing, headers, forwarding, server-sent events, and what is read from an
answer as
it passes. Pure: no sockets."""
