"""Prompts as tokens, exactly as the engine makes them: chat templates, renderers, tokenizers, caches. Pure.

registry         the renderer of a model's family       base           the renderer interface
prompt_encoder   a request's body as token ids          tokenizer      text as token ids
chat_template    jinja templates                        jinja_env      the sandbox that they run in
template_stability   cut points at which a growing conversation keeps its tokens
conversation_cache, text_cache   tokens of earlier conversation turns and texts
worker_tokens    the wire of a worker's /tokenize
harmony, mistral, plain_text, unavailable   renderers of families that have no template
"""
