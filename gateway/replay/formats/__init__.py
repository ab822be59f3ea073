"""Formats of traces: each is a row of a table, with a small reader.

table     the formats, and the one that a file has
reading   what readers share: options, rows that do not fit, times
times     unit of a clock, from its ticks
hashed    prompts as chained hashes   hash_shape  their block size, from lengths and counts
columns   CSV, with lengths only      turns       JSON with whole texts
bodies    requests as clients send them, and logs of them
chats     conversations, each turn a request
messages  messages of a chat, as texts
"""
