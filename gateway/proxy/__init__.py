"""One client request, there and back.

api        routes a parsed request             proxy          services shared by all exchanges
exchange   one request on one worker           split_exchange    prefill and decode on two workers
retries    which failures are tried again      responses_exchange   /v1/responses, kept by a worker
websocket  upgraded connections                deadlines      first byte, idle and total timeouts
intake     a body as a request                 large_intake   the same in a thread, for a large body
"""
