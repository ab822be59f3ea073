"""Index of the KV blocks that each worker holds, from its events (`memory.py`) and from routing decisions
(`assumed.py`)."""
