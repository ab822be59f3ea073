"""The inference APIs that clients speak: open paths, chats and errors in each dialect. Pure.

open_routes   the table (core/route_table.py), --route and --close-route
to_chat       a body of /v1/messages or /v1/responses as a chat
anthropic     /v1/messages                          responses     /v1/responses
sglang        both, as SGLang converts them
response_ids  ids that name the worker              error_format  OpenAI's and Anthropic's errors
"""
