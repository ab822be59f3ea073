"""Parts of a gateway, each of one subject, made of the configuration and of the parts that it names.

fleet             the fleet, and counts of requests     worker_access     settings of workers, calls to them
roster            workers awaited, probed, dropped      worker_sources    as they are given: URLs, names
lifecycle         slow start, drains, ejections          proofs            of salts and names, before joining
adapters          LoRA adapters, loaded on request      upstream          connections to workers
index             blocks of workers, shared or not      feeds             events into the index
event_streams     proof and recovery of streams         shared_bookings   of several hosts
prompts           tokenizers                            cache_loss        tokens computed again
policies          policies in use                       routing           decisions, and their log
verification      predictions and reports               recording         requests, for replays
requests          from admission to answer              open_requests     those under way
api               routes of the client port             client_surface    what its connections share
front_door        ports of clients and admins           listening_sockets bound ones
grpc_ports        picker, decisions, health, scaler     certificates      followed in their files
credentials       keys                                  scaling           advice for autoscalers
telemetry         access log, traces, log level         process_counts    metrics of the process
traffic           the last hour, for the console        reloads           the configuration in use
pool_objects      priorities and models, of Kubernetes warming          prefixes for workers that join
"""
