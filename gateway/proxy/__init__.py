"""The proxy: a client's request to a worker, and the answer back.

api        routes a parsed request             intake      a body as a request
dispatch   makes the exchange of a request     large_intake  the same in a thread, for a large body
context    services that exchanges share       exchange    executes a plan (`upstream/plan.py`)
responses  plans of /v1/responses, which a worker may keep
websocket  plans of upgraded connections
prompts    tokens, made here or elsewhere      retries     which failures are tried again
retryable  answers that another worker may better
deadlines  first byte, idle and total timeouts usage_check usage that workers report, checked
stream_keepalive   comments on a stream that sends nothing
held_refusal    503 and 429 of a worker, until their bodies are read
failures        charges, retries and errors of a worker that failed
accounting      metrics and observers of a request that ended
retry_metrics   metrics of retries and buffered bodies
"""
