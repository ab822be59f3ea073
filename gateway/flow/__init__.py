"""Flow control, before the decision: who asks, whether it is let in, and when it goes on.

askers.py    who asks: tenant, priority, SLO; and whose word on it is believed
gate.py      what each request passes: its tenant's limits, then the queue of its model
lines.py     the queues, one per model, and when they move
refusals.py  in which words who is not served now is told so
told.py      what is told of it: metrics, the admin API, the log
The rules themselves are in the core: `tenants.py`, `queue.py`, `saturation.py`.
"""
