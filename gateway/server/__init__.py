"""Where clients come in: sockets, TLS, proxies before us, and the next gateway that takes over."""
