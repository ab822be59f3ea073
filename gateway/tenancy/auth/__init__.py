"""Authentication: API keys and tokens, each request's tenant, and the salt that keeps tenants' caches apart.

authenticator  the caller of each request, or a refusal    credentials  keys and salts in use, reloaded
key_file       the key file                                key_format   one line of it
api_keys       what a key looks like, and its hash         admin_access who may use the admin port
jwt            tokens of other issuers                     jwks         their public keys
tenant_salt    the salt of each tenant                     salt_cost    cache hits that salts cost
"""
