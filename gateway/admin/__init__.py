"""The admin port: every endpoint below /admin, and /metrics and /health.

app      the routes, and the parts of each answer     auth     which key may ask, /admin/keys
workers  /admin/workers: add, drain, remove           lora     /admin/adapters: load and unload
explain  /admin/explain: the decision for a request that is not sent
endpoint_table   method, path, handler, fields        fields   fields of the answers, and their merge
audit    log of changes and refusals
request_fields   those of /admin/requests and /admin/traffic
advice_fields    those of /admin/advice                pool_fields       those of /admin/pool-objects
console  pages for a browser, at /
"""
