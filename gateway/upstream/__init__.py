"""Requests to workers: how each is executed (`plan`), its head and body (`outgoing`), pooled connections
(`connection`, `pools`), per-worker credentials, TLS and networks (`access`), and the calls that are not
clients' requests (`control_client`)."""
