"""Ingestion of KV events, from a worker's publisher into the index."""
