"""Tenants: who a client is (`auth/`), and when its requests are served (`admission/`)."""
