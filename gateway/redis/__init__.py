"""Redis or Valkey, shared by several gateways: the connection and the keys.

options   how it is reached            topology        which server now: Sentinels, Clusters
client    a connection, its schema     error_reporter  failures, logged once
keys      names of all keys            embedded        the server of `--redis embedded`
"""
