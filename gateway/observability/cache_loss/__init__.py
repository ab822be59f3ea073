"""Cache loss: why prompt tokens that some worker had cached were computed again (`GET /admin/cache-loss`).

observer           counts losses by decisions and answers; the work is done between requests
attribution        the cause of each token's loss         block_history  hashes that were once cached
prompt_similarity  known text at another position         break_location where a prefix breaks
explainer          a prompt's expected losses             top_losses     the largest losses
metrics            the causes on /metrics
"""
