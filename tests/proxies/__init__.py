"""The gateway behind the real nginx and HAProxy, as docs/behind.md configures them: `make test-proxies`."""
