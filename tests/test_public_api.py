"""Public names: those in `__all__`, each of them there, documented, and typed."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING

import pytest

import packer
import packer_reader
from tests.test_layers import MODULES

if TYPE_CHECKING:
    from types import ModuleType


@pytest.mark.parametrize("package", [packer, packer_reader], ids=lambda p: p.__name__)
def test_all_names_resolve(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("module", [m for m in MODULES if not m.endswith("__main__")])
def test_each_module_states_what_is_public(module: str) -> None:
    loaded = importlib.import_module(module)
    assert loaded.__doc__
    own = {
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module and inspect.isroutine(value)
    }
    public = set(getattr(loaded, "__all__", ()))
    assert own <= public, own - public
    for name in public:
        value = getattr(loaded, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert inspect.getdoc(value), name
