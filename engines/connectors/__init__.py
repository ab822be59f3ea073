"""KV connectors: transfer of a prompt's KV cache from a prefill to a decode worker, one file each.

The interface is `gateway/core/kv_connector.py`; `leg_bodies` has the parts that several of them share.
"""
