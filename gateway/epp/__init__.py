"""The endpoint picker: Envoy asks it (ext_proc) which worker a request goes to, and carries the bytes itself.

    Envoy ─ ext_proc ─► protocol ─► picker ─► proxy.api: authentication, admission, tokens, decision
      ▲                    ▲          │
      └─ headers, body ────┴──────────┘  envoy_connection: to the exchange, Envoy is the worker's connection

One core, several doors: a request through Envoy is an `InferenceExchange` as one through the proxy is, so
both count each other's load, quotas, usage and first tokens. `server.http2` carries the streams.

protocol     the order of messages, per mode: a state machine without I/O
processing_request   Envoy's messages, decoded            dynamic_metadata   values that Envoy forwards
messages     answers to Envoy                   wire   their bytes, written by hand
message_fields     sizes of a message's fields, before it is decoded
control_headers   objective, fairness, SLO and model rewrite under their old and new names
destination  endpoints, subset hints, headers by which a client could choose
addresses    of workers, also of those with host names     door   what the pickers of a gateway share
picker       a stream: messages to the gateway, its answers to Envoy
envoy_connection   passes an exchange's request to Envoy as header and body changes
responder    answers of the gateway: an immediate response, or the worker's answer as it passes
held_bookings      bookings of answers that Envoy does not show
prefill_booking    the booking at a prefill worker that another program asks
fallbacks    other workers for the same bytes
stream       gRPC streams as services see them; unary services
health       grpc.health.v1                 metrics   of the picker
"""
