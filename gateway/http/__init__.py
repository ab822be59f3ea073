"""HTTP as values: messages, framing, headers, forwarding, server-sent events, and usage in responses. Pure:
no sockets."""
