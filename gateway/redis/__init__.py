"""Redis or Valkey shared by several gateways: connections, keys, error reporting.

options   settings of the connection   master_lookup   finds the master: Sentinels, Clusters
client    connections, schema check    error_reporter  failures, logged once
keys      names of all keys            embedded        the server of `--redis embedded`
cancellation   commands that can be cancelled
"""
