"""What another policy would have done: a fleet in virtual time.

    command   arguments -> runs -> a table          play         one run, by names
    traces    requests that were recorded           recording    by a gateway
    lines     of files that may be packed           job          one request and what became of it
    fleet     the gateway's router before engines   exchange     one request to an engine and back
    engine    the simulated one's, in virtual time  profile      its hardware, in seconds and tokens
    clock     virtual seconds                       bounds       what placement can reach
    results   figures of a run                      picture      and its curves
    calibration  engines' speeds, and whether a replay is true

The other composition root beside `app`: the same policies, index and engine model, without sockets.
"""
