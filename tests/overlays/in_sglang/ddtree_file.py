"""`ddtree_utils.py` of the installed SGLang, loaded by its path: SGLang itself is not imported."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


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
    exec(compile(text, "ddtree_utils.py", "exec"), module.__dict__)
    return module
