"""kvgate against real servers of llama.cpp on CPU, all marked `engines` (`make test-engines`).

install.sh      builds the server        make_gguf.py    program that makes its model file
engine.py       a server as a process    conftest.py     servers that tests share
"""
