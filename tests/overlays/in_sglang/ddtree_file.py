"""`ddtree_utils.py` of the installed SGLang, loaded by its path: SGLang itself is not imported."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import sys
from pathlib import Path
from types import ModuleType

COPIES = itertools.count()


def source() -> str:
    """The text of the file."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    return (Path(spec.submodule_search_locations[0]) / "srt/speculative/ddtree_utils.py").read_text(encoding="utf-8")


def load(text: str) -> ModuleType:
    """A module from that text, perhaps changed."""
    module = ModuleType("ddtree_utils_by_path")
    sys.modules[module.__name__] = module  # dataclasses look for it there
    name = f"ddtree_utils_{next(COPIES)}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # triton reads its kernels there
    exec(compile(text, name, "exec"), module.__dict__)
    return module
