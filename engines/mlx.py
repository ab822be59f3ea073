"""MLX's server (`mlx_lm.server` 0.32.2): OpenAI's API, no KV events, no metrics, no /tokenize.

lists    a list as `prompt`, of texts or of token ids, ends the thread that generates: 404 to every later
         request, /health 503, until the server is restarted. It gets texts only
prompts  rendered by rules of its own (`gateway/tokenization/mlx.py`)
names    `model` is loaded in place of the model before, from a path or the hub; a name that cannot be
         loaded is 404, after the loaded model was dropped. So it is asked for listed names only, and
         never probed with another
models   in its list have no owner, unlike those of any other engine here, which marks it
"""

from engines.openai import BLOCK_SIZE, OpenAi
from gateway.core.engine import EngineInfo, EngineMarks, EngineMetrics, StreamUsage, TokenizeCalls
from gateway.core.rendering import Rendering


class Mlx(OpenAi):
    name = "mlx"
    marks = EngineMarks(has_no_owner=True)
    usage = StreamUsage()
    takes_lists = False
    loads_by_name = True
    tokenize: TokenizeCalls | None = None

    def parse_info(self, body: bytes | None) -> EngineInfo:
        rank = EngineMetrics(block_size=BLOCK_SIZE)
        return EngineInfo(ranks={0: rank}, sources=(), rendering=Rendering("mlx"))
