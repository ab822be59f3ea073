"""Models: which tokenizer makes a model's tokens, found out while the gateway runs.

catalog       a tokenizer for each root that workers serve      loader   each is loaded once
token_source  local tokenizer, worker, or none: per model       hub      where model files are found
token_parity  our tokens compared with a worker's               prompt_source  the prompt of a request
worker_tokens answers of /tokenize                              offload  long prompts, beside the event loop
from_config   models that the configuration names               breaker  rests a failing /tokenize
"""
