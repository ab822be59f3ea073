"""Models: the tokenizer of each served model, found while the gateway runs.

catalog       a tokenizer for each root that workers serve      loader   loads each tokenizer once
token_source  local tokenizer, worker, or none: per model       hub      directories and caches of model files
token_parity  local tokens compared with a worker's             prompt_source  the prompt of a request
worker_tokens answers of /tokenize                              offload  long prompts, beside the event loop
from_config   models that the configuration names               breaker  rests a failing /tokenize
"""
