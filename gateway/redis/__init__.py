"""Redis or Valkey, which several gateways share: the connection, the server of our own, and what lies there.

options  how it is reached         places   which of several servers it is now: Sentinels, Clusters
client   a connection, its schema  trouble  what it is there for and does not do, said once
keys     how all is named          log      one worker's log, snapshot and lease
server   `--redis embedded`        tail     what is added to the logs
"""
