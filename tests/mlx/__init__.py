"""kvgate against real MLX servers on CPU, all marked `engines` (`make test-engines`).

install.sh, requirements.txt    the engine's environment
engine.py                       a server as a process           conftest.py  servers that tests share
inside_prompts.py               its own prompts, without a server
"""
