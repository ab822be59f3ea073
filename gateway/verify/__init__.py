"""What was predicted, beside what engines say.

asking      which streams are asked for usage      verifier    sees decisions, answers, events, scrapes
exactness   how right, and what that is worth      causes      why not
tokens      are our prompt tokens the engine's?    counters    the engine's own, of all traffic
overheard   an index that tells what goes in       metrics     /metrics and /admin/verify
"""
