"""Costs that policies weigh, in seconds and in tokens.

cost_model      predicted TTFT, and the cost to others   token_work      work ahead, and loading, in tokens
copy_budgets    what copies of a prefix may cost         transfer_speed  speed of KV transfers, learnt
"""
