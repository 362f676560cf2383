"""Where the facts of a wheel lie in the store."""

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
        python: Minor version whose layout they have.
    """
    return facts_dir / f"{sha256}-py{python}-{INSPECTOR}.json"
