"""Signals and advice for autoscalers: how many workers of each model and role would meet the TTFT objective.

    counts of the gateway ─► history ─► capacity ─► advice ─► stabilizer ─► metrics, /admin/advice, KEDA
                        (every 5 s)                              ▲
                                        cold_start (learnt from joins)

The gateway advises and scales nothing: KEDA or an HPA acts. Time is a parameter everywhere but in `planner`.

history     counts over the last minutes            capacity    the rate that one worker can serve in time
advice      a group's state in, its advice out      stabilizer  up at once, down after a while, no flapping
cold_start  from the need of a worker to its join   groups      models and roles, by the names of requests
split       of workers between prefill and decode
planner     the round that reads the gateway        metrics     of the advice
report      the advice for /admin/advice
keda        the external scaler of KEDA (gRPC)
"""
