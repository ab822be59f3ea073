"""The pure core: plain values in, plain values out.

No asyncio, no clock, no randomness of its own, no logging, no sockets. Time and chance are
parameters.

request, token_prompt   an inference request, whichever API it came by; ids apart from its body
route_table         every open path, and all that is known of it
decision            inputs and results of a policy    fleet, eligibility   known workers, eligible ones
worker              one routable engine rank          pd_pairs             prefill and decode pairs that fit
ledger              requests in flight per worker     outcome              how a request at a worker ended
speed, slow_start   learnt speed, share when new      usage                token counts by engines
panic               late workers that get requests
pool_objects        priorities of objectives, rewrites of models
rendering           how an engine makes prompts       hit_rule             what it reuses of a prefix
usage_reading       usage from answers, judged        prediction           predicted beside reported tokens
blocks              block hashes                      kv_events            an engine's reports of its cache
value               frozen values, compiled       cached_reports       0 where engines write null
event_stream        state machine of the events       token_runs           the tree of known prompts
block_limits, figure_bounds   bounds on workers' reports  multimodal     prompts with images and sounds
engine, kv_connector   interfaces of the adapters in `engines/`
errors, decode_errors  errors with their HTTP answers; errors of decoders
spelling, arguments  the nearest known name, and command lines that answer with it
printable           peers' texts for people
durations           times as people write them        causes               errors in words for people
windowed_search     searches of large bodies
chat_messages       a chat's messages, not yet decoded    json_values      numbers beyond floats
caller, session_id  who asks, and in which session        body_text        encodings, and broken places
rendezvous          a preferred worker for each key
"""
