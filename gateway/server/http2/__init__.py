"""HTTP/2 and gRPC for the ports of the endpoint picker, on the event loop: bytes in, events, bytes out.

    GrpcServer ─► GrpcProtocol ─► GrpcConnection ─► Call ◄─► a service's handler
     (sockets)     (transport)         │ events ▲
                                   Http2Connection: frames, header blocks, streams, windows, limits

server       one port, TLS and plain              first_bytes      which of both, and mistaken clients
protocol     a connection on the event loop       service          streams as services see them
grpc_connection   streams become calls            grpc_framing     messages, timeouts, statuses
connection   states of streams and connection     send_queue       frames to send, in turns
events       of a connection                      stream           windows and output of a stream
frames       read and written                     peer_settings    what a peer announces
header_block      put together, and written       header_decoder   HPACK: blocks become headers
header_table      static and dynamic headers      huffman          code of HPACK's strings
request_head      headers of requests, judged     limits           limits, and budgets against floods

Everything below `protocol` is without I/O; time is a parameter. No task per stream: handlers are called as
frames arrive. The tests play h2spec's cases (tests/server/http2/h2spec.py).
"""
