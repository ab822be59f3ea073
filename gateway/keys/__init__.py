"""Who may ask: API keys, each request's tenant, and what keeps tenants' caches apart.

guard       each request: whose key it is, or why not
keeper      what the guard goes by, and keeps it new
file        the key file, read anew when it changes
admin       the admin API's own guard, /admin/keys
given_up    hits that salts cost
told        metrics
command     `kvgate key`
"""
