"""OpenAI's client before a gateway or an engine; the folder's fixture closes what a test opened."""

import openai

TIMEOUT_S = 120
_opened: list[openai.OpenAI] = []


def client(url: str) -> openai.OpenAI:
    opened = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S)
    _opened.append(opened)
    return opened


def close_clients() -> None:
    while _opened:
        _opened.pop().close()
