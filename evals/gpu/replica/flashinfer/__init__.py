"""A stand-in for flashinfer, whose kernels are too large to be carried: its names exist, and every call raises.

SGLang imports names of this package at many places, also where another backend does the work.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

__version__ = "0.6.15.post1"


class _Missing:
    """Stands for any name of the package."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise ImportError("this is a stand-in for flashinfer, which has no kernels; choose other backends")


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.startswith("flashinfer."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.append(_Finder())
sys.modules[__name__].__class__ = _Module
