"""Prefill and decode on different workers, as real engines do (docs/reference/engines-disaggregation.md).

leg         what one request is in that (pure)        leases     what lies ready to be fetched (pure)
nixl        vLLM's kv_transfer_params                 channel    the sockets between workers
protocols   by name                                   transfers  fetching and being fetched from
info        how a worker tells its role
"""
