"""Listening side: sockets, TLS, proxies in front of us, client connections, and take-overs by the next
gateway.

listener     listening, handshakes, draining      acceptor         connections of one socket
sockets, socket_set   binding; bound or taken     systemd          sockets and notifications
connection   HTTP/1.1 of a client                 responder        answers to it
body_budget  memory of request bodies             client_limit     connections at most
reverse_proxy, proxy_protocol   addresses and base paths behind proxies
upgrade_buffer   bytes behind an upgrade request
handover     the next gateway takes over          fd_channel, draining    files and connections handed on
http2        gRPC for the endpoint picker
admin_server, admin_runner, slow_admin_clients    the admin port
"""
