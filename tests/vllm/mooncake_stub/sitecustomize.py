"""Stand-in for an accelerator: vLLM's MooncakeConnector asks which one is current, and here it is number 0.

Python imports this file at the start of each process that has its folder in PYTHONPATH.
"""

import importlib.abc
import importlib.util
import sys

NAME = "torch.accelerator"


class Patch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            module.current_device_index = lambda: 0
            module.set_device_index = lambda *index: None

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Patch())
