"""The pure core: plain values in, plain values out.

No asyncio, no clock, no randomness of its own, no logging, no sockets. Time and chance are
parameters. Files are read only where a model's tokenizer and template are loaded
(`tokenization/prompt_encoder.py`).
"""
