"""Models: the tokenizer of each served model, found while the gateway runs.

catalog        a tokenizer for each root that workers serve      loader   loads each tokenizer once
prompt_source  the prompt of a request                           hub      folders and caches of model files
from_config    models that the configuration names               offload  long prompts, beside the event loop
metrics        tokenizers, and sources of tokens                 breaker  rests a failing /tokenize
worker_tokenizer  workers' own /tokenize                         tokenize_budget  time that it gets
model_entry    a model, its workers and its tokenizer            worker_days  days that workers print
late_calls     /tokenize calls that go on after it
local_tokens   prompts of a worker that is checked
tokenizer_readings  which reading of a tokenizer its workers follow
template_trials  tries chat templates from outside, and proves cut points, in processes of their own

`gateway/parity` compares their tokens with each worker's.
"""
