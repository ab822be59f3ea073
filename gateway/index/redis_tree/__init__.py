"""The index that lies in Redis: a prefix tree of values, walked and changed by scripts.

writer    an index's holdings as operations          lookup.lua  one walk for all workers
pipeline  one connection, commands packed by hand    apply.lua   operations, all or none
tree      scripts and their calls                    slots.lua   which worker has which number
index     a gateway's own part of the index
"""
