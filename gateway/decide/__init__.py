"""The decision service: programs that carry the bytes themselves ask over gRPC for the worker of a request.

    Decide ─► requests ─► proxy.api: authentication, admission, tokens, decision ─► replies
    Report ─► reports ─► the exchange, as an answer that passes: load, learning, usage, verification

A decision is an `InferenceExchange` as a request through the proxy or Envoy is, so all count each other's
load. `proto/kvgate/v1/decide.proto` is the contract.

states     a decision from request to release: a table
requests   a message as a client's request             replies    a decision, or a refusal, as a message
reports    what was reported, as a worker's answer     report_relay  between processes
decision   one decision: request, booking, expiry
services   Decide, Report and Session as gRPC streams  message_bounds  limits, before a message is decoded
message_parts  token ids and the message around them, read by hand
metrics    of decisions                                client     for programs: `kvgate.DecideClient`
"""
