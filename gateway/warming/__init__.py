"""Warming: a worker with an empty cache is sent the prefixes that requests share, before they find it cold.

    decisions ─► hot_prefixes ─┐
    fleet, index, load ────────┴─► prospects ─► choice ─► warmer ─► /v1/completions, max_tokens 1

hot_prefixes  tree of prefixes by their requests; token ids only of what several requests shared
prospects     the hot prefixes as one worker would use them: what it lacks, and how often it would be asked
choice        the prefixes that are sent, within the share of the cache
body          the request that is sent
sender        the call that sends it
warmer        one worker after its join: waits for idle capacity, sends, and gives way to requests
metrics       of what was sent, and of what is kept
"""
