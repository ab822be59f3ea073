"""The configuration is read anew while the gateway runs: all of it applied, or none.

difference  what is new, as far as it can be taken    reloads   read, compare, apply, tell
together    in several processes: first all agree, then all change
"""
