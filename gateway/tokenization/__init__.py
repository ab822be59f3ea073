"""Prompts as tokens, exactly as the engine makes them: chat templates, renderers, tokenizers, caches. Pure.

model_families   the renderer of a model's family       base           the renderer interface
prompt_encoder   a request's body as token ids          tokenizer      text as token ids
chat_template    jinja templates                        jinja_env      the sandbox that they run in
sandbox          limits of their time and memory        template_trial a process that tries one from outside
render_cost      what a template takes for each message
template_stability   cut points at which a growing conversation keeps its tokens
template_reading, conversation_features   what a template looks for, and what a conversation has
conversation_cache, text_cache   tokens of earlier conversation turns and texts
render_settings, probe_conversations   proofs of these cut points
proof_task, proof_process   the proofs of a load, in a process of their own
message_frame    the text around a plain message        pieces         long texts in bounded pieces
tokenizer_class  tokenizers that transformers makes of a vocabulary      class_names  its names, as data
template_needs   chats that templates are probed with
longest_token    a lower bound of a text's tokens       model_files    files of a model's directory
worker_tokens    the wire of a worker's /tokenize
sglang_effort    templates that change an effort before SGLang
sglang, mlx   renderers of engines that render otherwise than vLLM
nested_json      the limits of tool calls' arguments
harmony, mistral, plain_text, unavailable   renderers of families that have no template
"""
