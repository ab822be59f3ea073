"""Token parity: whether a worker makes the same tokens of a prompt as kvgate, or as another worker.

    observation                            verdict                                 consequence
    a worker's tokens of 20 probes         token_source: local, remote or none     prompts (`models.catalog`)
    two workers' tokens of 2 probes        comparison.parity_difference            no pair (`pairs`)
    usage.prompt_tokens, stored blocks     live_check: alarm raised or cleared     metrics, /admin/verify

probes        the prompts                      prober      asks workers for their tokens
comparison    the first difference of tokens   pairs       prefill and decode workers of other tokens
token_source  local tokenizer, worker or none  live        observes decisions and answers
live_check    state of a worker's live parity  worker_day  the day that a worker prints
"""
