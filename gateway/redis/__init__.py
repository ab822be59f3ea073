"""Redis or Valkey, which several gateways share: the connection, the server of our own, and what lies there.

options  how it is reached         client  a connection, its schema checked
keys     how all is named          server  `--redis embedded`: a Valkey that lives as long as we do
"""
