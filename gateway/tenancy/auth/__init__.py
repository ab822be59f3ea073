"""Authentication: API keys and JWTs, each request's tenant, and the salt that keeps tenants' caches apart.

authenticator  the caller of each request, or an error     credentials  keys and salts in use, reloaded
key_file       the key file                                key_format   one line of it
api_keys       format and hash of a key                    admin_access access to the admin port
jwt            tokens of other issuers                     jwks         their public keys
tenant_salt    the salt of each tenant                     salt_cost    cache hits that salts cost
salt_cost_observer   decisions that it is estimated from   metrics      metrics
"""
