"""The image as `make test-image` builds it, and containers of it as a cluster runs them."""
