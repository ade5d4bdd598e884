"""Exchanges the code of living functions."""

from __future__ import annotations

import functools
import importlib
import sys
from types import FunctionType
from typing import Any

from leasing.db import statements
from tests.mutants.making import Mutant


def apply(mutant: Mutant) -> None:
    """Give the living function the mutant's code or SQL, or the module its constant. Statements
    that were compiled before are forgotten."""
    forget_statements()
    module = importlib.import_module(mutant.module)
    place, _, attribute = mutant.place.rpartition(".")
    if attribute == "sql":
        function: Any = function_of(module, place)
        function.sql = eval(mutant.value, vars(module))
    elif mutant.code is None:
        setattr(module, mutant.place, mutant.value)
    else:
        function_of(module, mutant.place).__code__ = mutant.code


def function_of(module: Any, place: str) -> FunctionType:
    """The function of that qualified name, from under its decorators."""
    found = module
    for name in place.split("."):
        found = vars(found)[name]
    while not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        for attribute in ("__wrapped__", "__func__", "fget", "func"):
            if hasattr(found, attribute):
                found = getattr(found, attribute)
                break
        else:
            raise TypeError(f"{place} is no function")
    return found


def forget_statements() -> None:
    """Empty the caches of the two packages."""
    statements._cache.clear()
    for name, module in list(sys.modules.items()):
        if name.startswith(("leasing.", "tasks.")):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
