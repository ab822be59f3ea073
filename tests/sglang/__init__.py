"""kvgate against real SGLang servers on CPU, all marked `engines` (`make test-engines`).

test_gateway      pages, routes, evictions, restarts   test_ranks  data-parallel ranks
test_adapters     LoRA                                 test_salts  tenants' caches
test_pd           prefill and decode by NIXL              test_mixed  one model on SGLang and vLLM
test_engine_test  `kvgate engine test`                    test_upgrade  two versions side by side

install.sh, requirements.txt    the engine's environment        stubs/    stand-ins for GPU libraries
engine.py                       a server as a process           conftest.py  servers that modules share
"""
