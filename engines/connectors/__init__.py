"""KV connectors: how a prompt's KV cache gets from a prefill worker to a decode worker, one file each.

The interface is `gateway/core/kv_connector.py`; `leg_bodies` holds what several of them share.
"""
