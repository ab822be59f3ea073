"""Routing: which worker gets a request, and what is learnt from how it went.

router         one decision: candidates, policy, booking       candidates       workers with load and overlap
active_policy  the policy in use, and its reload               decision_log     the latest ones, explained
learning       outcomes into the speed models                  speed_model      seconds per token, per worker
least_squares  the online fit below it                         fleet_fit        fits of all workers together
concurrency    how many requests run at once                   predictions      how far predictions are off
experiments    A/B tests and shadow policies                   policy_score     how each policy did
remote_lookup  lookups in a remote index before a decision     query            the prompt as policies see it
prompt_limit   prompts too long for a model                    experiment_metrics   metrics of experiments
prediction_metrics   metrics of predicted TTFTs
"""
