"""KV events on their way from a worker's publisher into the index."""
