"""The inference APIs that clients speak: routes, bodies of each dialect, errors in each dialect's form. Pure.

routes       which paths are forwarded             session       the session id of a request
to_chat      a body of /v1/messages or /v1/responses as a chat
anthropic    /v1/messages                          responses     /v1/responses
response_ids ids that name the worker              error_format  OpenAI's and Anthropic's errors
model_alias  one model under several names         multipart     forms with an upload
"""
