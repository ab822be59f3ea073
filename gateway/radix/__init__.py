"""The index that lies in Redis: a prefix tree whose edges are values, walked and changed by scripts.

writer  what an index tells of its holdings, as operations      lookup.lua  one walk for all workers
lane    one connection, commands packed by hand                 apply.lua   operations, all or none
tree    scripts and their calls; who is looked up and written   slots.lua   who writes under which number
index   the index of a gateway that keeps its own part there
"""
