"""Cache loss: why prompt tokens that some worker had cached were computed again (`GET /admin/cache-loss`).

observer           sees decisions and answers, and counts; the rest is done between requests
attribution        the cause of each token's loss         block_history  hashes that were once cached
prompt_similarity  known text in another place            break_location where a prefix breaks
explainer          a prompt's losses, laid out            top_losses     the worst of them
"""
