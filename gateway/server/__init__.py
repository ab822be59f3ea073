"""Listening side: sockets, TLS, proxies in front of us, client connections, and take-overs by the next
gateway."""
