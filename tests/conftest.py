"""What all tests share: golden files, and how they are rewritten.

`golden("spec/problems.txt", text)` compares a text with `tests/data/spec/problems.txt`. After a wanted change, `pytest --accept` rewrites the
files; the diff is then reviewed like code.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parent / "data"

DEFAULT_MARKS = "not gpu and not real"
"""As in pyproject.toml."""

# No deadlines: the machines that run tests are shared, and a slow one has found no defect. The same examples in every run, so that a failure
# is the fault of the change at hand.
settings.register_profile("envspec", deadline=None, derandomize=True)
settings.load_profile("envspec")


def pytest_configure(config: pytest.Config) -> None:
    """Let tests be interrupted, and what they start: the workers of pytest-xdist ignore SIGINT, and children inherit that."""
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """With `-m real` or `-m gpu` one process: they share one large environment, or one GPU."""
    return None if config.getoption("markexpr") == DEFAULT_MARKS else 0


SLOW_FOLDERS = ("hosts", "cli")
"""Where a file takes up to a minute and a half: these begin first, so that no worker is left with one when the others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow folders first; within a folder the order stays."""
    place = {name: number for number, name in enumerate(SLOW_FOLDERS)}
    items.sort(key=lambda item: place.get(item.path.parent.name, len(place)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept", action="store_true", help="rewrite the golden files in tests/data with what the code gives now"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A function that compares a text with a file of `tests/data`, or rewrites that file under `--accept`."""

    def compare(relative_path: str, text: str) -> None:
        path = DATA / relative_path
        if request.config.getoption("--accept"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
        assert path.is_file(), f"there is no {path}; pytest --accept writes it"
        with path.open(encoding="utf-8", newline="") as file:
            assert file.read() == text, f"{path} differs; pytest --accept rewrites it"

    return compare
