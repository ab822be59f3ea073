"""HTTP as values: messages, framing, headers, forwarding, server-sent events, and usage in responses. Pure:
no sockets.

messages, framing    requests and heads; where a body ends    headers, forwarded   what crosses a proxy
url, address         strict URLs; base URLs of endpoints      networks, origins    trusted addresses, Hosts
caller               tenant, models and salt of a request     proxy_protocol       addresses from balancers
response_observer    first token, pieces, usage of an answer  sse, json_usage      streamed and plain answers
usage_injection      usage requested of a stream              usage_redaction      cached counts hidden
cache_report         announcements of a hit, on request       upgrade, websocket_frames   WebSockets
refusal              503 and 429 of a worker, read
"""
