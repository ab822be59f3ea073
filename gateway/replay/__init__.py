"""Replay of recorded traffic with other policies: a fleet in virtual time.

command   arguments -> runs -> a table          play         one run, by names
traces    requests that were recorded           formats/     that they may have
recorded_jobs  by a gateway                       job          one request and its outcome
line_reader  lines of packed files              array_values  one at a time
fleet     the gateway's router before engines   exchange     one request to an engine and back
engine    the simulated one's, in virtual time  profile      its hardware, in seconds and tokens
clock     virtual seconds                       placement_bounds   limits of any placement
results   figures of a run                      charts       and its curves
context_limit  requests that no cache holds     progress     of long replays, on stderr
calibration  engines' speeds, and the error of a replay

A second composition root beside `app`: the same policies, index and engine model, without sockets.
"""
