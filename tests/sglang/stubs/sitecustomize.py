"""Stand-ins for compiled GPU libraries, so that SGLang starts on a machine without a GPU.

SGLang imports them at module level and calls none of them on the path that tests run: HTTP server,
scheduler, radix cache, events, replay and metrics are its own. Python imports this file at the start of each
process that has its folder in PYTHONPATH.

    torchvision, torchaudio, sgl_kernel    modules in which every name exists; a call raises RuntimeError
    transformers                           believes that they are not installed, also once one was imported
    torch, with NO_PINNING set             memory is not pinned for a GPU (LoRA buffers and host pools are)
    nixl, with NIXL_ON_CPU set             the KV cache, registered as a GPU's whatever it is, is plain memory
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

NAMES = {"torchvision", "torchaudio", "sgl_kernel"}
MAKERS = (
    "empty",
    "zeros",
    "ones",
    "full",
    "empty_like",
    "zeros_like",
    "tensor",
    "empty_strided",
    "arange",
    "as_tensor",
)
MEMORY_METHODS = (
    "register_memory",
    "deregister_memory",
    "get_reg_descs",
    "get_xfer_descs",
    "prep_xfer_dlist",
)
IS_INSTALLED = "transformers/utils/import_utils.py"


class Named(type):
    """Class of which every attribute exists, as its own name."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class Base(metaclass=Named):
    def __init_subclass__(cls, **options):
        super().__init_subclass__()


class StandIn(types.ModuleType):
    """Module of which every attribute exists: a class if its name begins with a capital, else a module."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__file__ = __file__
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full not in sys.modules:
            if name[:1].isupper():
                made = Named(name, (Base,), {"__module__": self.__name__})
                setattr(self, name, made)
                return made
            sys.modules[full] = StandIn(full)
        setattr(self, name, sys.modules[full])
        return sys.modules[full]

    def __call__(self, *args, **options):
        if len(args) == 1 and callable(args[0]) and not options:  # used as a decorator
            return args[0]
        raise RuntimeError(f"{self.__name__} is a stand-in: it was called")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES and not _is_asked_by_transformers():
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def _is_asked_by_transformers():
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(IS_INSTALLED) and code.co_name == "_is_package_available":
            return True
        frame = frame.f_back
    return False


class Patch(importlib.abc.MetaPathFinder):
    """Patches one module once it is imported."""

    def __init__(self, name, patch):
        self.name = name
        self.patch = patch

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.patch(module)

        spec.loader.exec_module = exec_module
        return spec


def _unpin(torch):
    for maker in MAKERS:
        setattr(torch, maker, _unpinned(getattr(torch, maker)))
    torch.Tensor.pin_memory = lambda self, *args, **options: self


def _transfer_plain_memory(nixl):
    for method in MEMORY_METHODS:
        setattr(nixl.nixl_agent, method, _of_plain_memory(getattr(nixl.nixl_agent, method)))


def _of_plain_memory(call):
    def called(self, *args, **options):
        args = [_plain(each) for each in args]
        return call(self, *args, **{name: _plain(each) for name, each in options.items()})

    return called


def _plain(value):
    return "DRAM" if isinstance(value, str) and value.upper() in ("VRAM", "CUDA") else value


def _unpinned(make):
    def made(*args, **options):
        options.pop("pin_memory", None)
        return make(*args, **options)

    return made


_find_spec = importlib.util.find_spec


def _find(name, package=None):
    if name in NAMES and sys._getframe(1).f_code.co_filename.endswith(IS_INSTALLED):
        return None
    return _find_spec(name, package)


importlib.util.find_spec = _find
sys.meta_path.insert(0, Finder())
if os.environ.get("NO_PINNING"):
    sys.meta_path.insert(0, Patch("torch", _unpin))
if os.environ.get("NIXL_ON_CPU"):
    sys.meta_path.insert(0, Patch("nixl_cu13._api", _transfer_plain_memory))
