"""The composition root: the only room that knows every concrete class.

gateway     all parts of one process, put together      told     what its admin port tells of each
workers     what knows the workers
checking    `kvgate check`, with the same parts         bundled  what comes with the simulated engine
"""

from gateway.app.bundled import bundled_tokenizer, simulate
from gateway.app.checking import check
from gateway.app.gateway import Gateway

__all__ = ["Gateway", "bundled_tokenizer", "check", "simulate"]
