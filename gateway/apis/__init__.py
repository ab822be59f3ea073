"""The inference APIs that clients speak: open paths, bodies and errors in each dialect. Pure.

routes        paths that are open: the table (core/requests/routes.py), --route and --refuse-route
to_chat       a body of /v1/messages or /v1/responses as a chat
anthropic     /v1/messages                          responses     /v1/responses
sglang        both, as SGLang converts them
response_ids  ids that name the worker              error_format  OpenAI's and Anthropic's errors
multipart     forms with an upload                  session       the session id of a request
large_body    bodies of 1 MiB and more              abridged      a body without its long texts
outline       where the fields of one lie           large_media   media of one, scoped to a tenant
"""
