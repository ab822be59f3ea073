"""Disaggregated prefill and decode, as in real engines (docs/reference/engines-disaggregation.md).

leg         a request's part in it (pure)              leases     blocks ready to be fetched (pure)
nixl        vLLM's kv_transfer_params                 channel    the sockets between workers
protocols   by name                                   transfers  fetching and being fetched from
info        the worker's report of its role
"""
