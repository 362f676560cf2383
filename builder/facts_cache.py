"""Where the facts of a wheel lie in the cache. Light to import, unlike what measures them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.facts import INSPECTOR

if TYPE_CHECKING:
    from pathlib import Path


def facts_path(facts_dir: Path, sha256: str, python: str) -> Path:
    """The file with the facts of a wheel.

    Args:
        facts_dir: Of the store.
        sha256: Of the wheel.
        python: Minor version of the environment's Python.
    """
    return facts_dir / f"{sha256}-py{python}-{INSPECTOR}.json"
