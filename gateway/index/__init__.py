"""Index of the KV blocks that each worker holds, from its events (`memory.py`) and from routing decisions
(`assumed.py`). `app/index_backend.py` lists the backends.

base            the interface of a backend          reference       the obvious version, an oracle in tests
memory          a prefix tree with packed edges     memory_sweep    its clean-up, in the background
edges, engine_hashes, holder, worker_bits           parts of it, packed
holder_masks    one walk for all workers            kv_groups       prefixes of hybrid models
assumed         blocks of requests that were sent   assumed_tree    those of one worker
sent_media      images that were sent
inventory       an agent's own index                redis_tree/     the index in Redis
followed_tiers  how many media and groups count
blind_recovery  blocks of BLIND streams             orphans, proofs what is known of these
"""
