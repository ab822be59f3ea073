"""Parts of a gateway in this process, each with stand-ins for all that surrounds it.

roster, lifecycle      workers that join and fail    named_workers   workers behind a DNS name
kube_sources, kube_membership   workers in pods      catalog         models and their tokenizers
exchanges              the proxy                     disaggregated   the proxy with prefill workers
decisions              the decision service          endpoint_picks  the endpoint picker for Envoy
router, experiments    choices of workers            gate, ledgers   admission and bookings
verified, cache_loss   cached tokens, explained      shelf           blocks of a rank, kept for others
planner                advice on scaling             admin_api       the admin API
"""
