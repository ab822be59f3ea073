"""What another policy would have done: a fleet in virtual time.

    fleet     the gateway's router before engines   engine    the simulated engine's scheduler and cache
    exchange  one request to an engine and back     job       one request and what became of it
    clock     virtual seconds                       profile   an engine's hardware, in seconds and tokens
    traces    requests that were recorded

The other composition root beside `app`: the same policies, index and engine model, without sockets.
"""
