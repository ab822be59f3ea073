"""kvgate against real SGLang servers on CPU, all marked `engines` (`make test-engines`).

install.sh, requirements.txt    the engine's environment        stubs/    stand-ins for GPU libraries
engine.py                       a server as a process           conftest.py  servers that modules share
"""
