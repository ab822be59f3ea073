"""Admission control, before the routing decision: tenants' limits, and queues while workers are saturated.

request_identity  tenant, priority and SLO of a request, and which proxies may declare them
gate              the checks of each request: its tenant's limits, then the queue of its model
tenants           limits and token buckets              queues      one per model, and their release
fair_queue        order within a queue                  saturation  when a worker has no room
rejections        errors of rejected requests           stats       counts, latest rejections
metrics           metrics, and the admin API's page
token_bucket      a burst that refills                  drain_rate  tokens released per second
model_queue       the queue of one model            zero        models that wait for a first worker
base              a request, as admission control sees it
"""
