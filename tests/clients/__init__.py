"""Clients of the decision service in Go and Rust, by docs/guides/decision-service.md."""
