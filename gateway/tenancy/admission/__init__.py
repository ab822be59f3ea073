"""Admission control, before the decision: tenants' limits, and queues while workers are saturated.

request_identity  tenant, priority and SLO of a request, and which proxies may declare them
gate              what each request passes: its tenant's limits, then the queue of its model
tenants           limits and token buckets                  queues      one per model, and when they move
fair_queue        order within a queue                      saturation  when a worker has no room
rejections        the words of a refusal                    stats       metrics, the admin API, the log
"""
