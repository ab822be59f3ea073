"""HTTP as values: messages, framing, headers, forwarding, server-sent events, and usage in responses. Pure:
no sockets.

messages, framing    requests and heads; where a body ends    headers, forwarded   what crosses a proxy
url, address         strict URLs; base URLs of endpoints      networks, origins    trusted addresses, Hosts
proxy_protocol       addresses from balancers                 sse, json_usage      streamed and plain answers
response_observer    first token, pieces, usage of an answer  usage_redaction      cached counts hidden
usage_injection      usage requested of a stream              upgrade, websocket_frames   WebSockets
cache_report         announcements of a hit, on request       refusal              saturated workers
retry_after          times that answers ask to wait
kubernetes_url       k8s:// URLs                            content              readings of a body
redirect             redirects of workers                     stream_chunks        parsed chunks of streams
cross_origin         pages of other sites, in browsers
"""
