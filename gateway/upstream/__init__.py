"""Connections to workers: pools (`connection`), per-worker credentials, TLS and networks (`access`), and the
calls that are not clients' requests (`control_client`)."""
