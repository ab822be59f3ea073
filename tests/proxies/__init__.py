"""The gateway behind the real nginx and HAProxy (`make test-proxies`), by docs/guides/reverse-proxies.md."""
