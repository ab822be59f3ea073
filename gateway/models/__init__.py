"""Which model's prompts are tokenized where, found out while the gateway runs.

catalog   a tokenizer for each root that workers serve       shelf    each is loaded once
verdicts  here, by the worker, or not at all: for each       places   where it is found
          model and worker                                   metrics  what operators see of it
given     as the configuration says
"""
