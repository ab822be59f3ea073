"""Who may ask: API keys and tokens, each request's tenant, and what keeps tenants' caches apart.

guard       each request: whose key it is, or why not
keeper      what the guard goes by, and keeps it new
file        the key file, read anew when it changes
admin       the admin API's own guard, /admin/keys
jwt         tokens that others issued
jwks        their public keys, fetched beside the traffic
given_up    hits that salts cost
told        metrics
command     `kvgate key`
"""
