"""Index in Redis: one prefix tree per model, walked and changed by Lua scripts.

writer    an index's holdings as operations          lookup.lua  one walk for all workers
pipeline  one connection, commands packed by hand    apply.lua   operations, all or none
tree      scripts and their calls                    slots.lua   allocation of numbers to workers
index     a gateway's own part of the index         publication  from `Holdings` into the trees
service   connections, writes, lookups              browse       a read-only view for `kvgate index`
"""
