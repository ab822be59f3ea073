"""HTTP/2 and gRPC for the ports of the endpoint picker, on the event loop: bytes in, events, bytes out.

    GrpcServer ─► GrpcProtocol ─► GrpcConnection ─► Call ◄─► a service's handler
     (sockets)     (transport)         │ events ▲
                                   Http2Connection: frames, header blocks, streams, windows, limits

server       one port, TLS and plain              first_bytes      which of both, and mistaken clients
protocol     a connection on the event loop       service          streams as services see them
grpc_connection   streams become calls            grpc_framing     messages, timeouts, statuses
connection   states of streams and connection     send_queue       frames to send, in turns
events       of a connection
stream       windows and output of a stream       peer_settings    what a peer announces
frames       read and written                     header_block     HPACK, checks of headers
limits       limits, and budgets against floods

Everything below `protocol` is without I/O; time is a parameter. No task per stream: handlers are called as
frames arrive. The tests play h2spec's cases (tests/server/http2/h2spec.py).
"""
