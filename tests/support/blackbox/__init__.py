"""A gateway process from outside, and the clients and workers around it.

bench            all of it, for one test      siege              the same under attack
real_gateway     the process                  several_processes  a gateway of several
strict_client    client of raw connections    scripted_worker    worker with scripted answers
http1_bytes      HTTP/1.1                     websocket_frames, multipart_forms, proxy_headers   bytes
keys             keys of clients              limited_keys       what a key for some models may send
tunnels          WebSockets                   stored_responses   worker that stores answers
black_hole       port without an answer       engine_refusals    answers of full engines
lying_agents     hostile agents               kube_cluster       workers as pods
real_kube        pods of a real API server
upgrades         one gateway after another    memory_peaks       memory of the process
decide_service   the decision service         kvgate_command     commands of kvgate
envoy_streams    streams of ext_proc
"""
