"""Projects for tests of the command line: empty, locked, and built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.projects import Project, copy_tree, make_writable, remove_tree, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALPHA = "import sys\n\nimport beta\n\ndef main():\n    print('alpha', beta.VALUE, *sys.argv[1:])\n"


def fill(project: Project) -> None:
    """Two packages, one of them patched: what the tests of a whole environment need."""
    project.wheel("beta", "1.0", {"beta/__init__.py": "VALUE = 1\n", "beta/more.py": "MORE = 'x' * 10\n"})
    project.wheel(
        "alpha",
        "1.0",
        {"alpha/__init__.py": ALPHA, "alpha/data.txt": "data\n"},
        requires=["beta>=1"],
        entry_points="[console_scripts]\nalpha = alpha:main\n",
    )
    project.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 2")
    project.write_spec(
        {"alpha": "==1.0"}, imports=["alpha", "beta"], more='[overlays.beta]\nseries = "overlays/series"'
    )


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project without a spec, and with an empty index."""
    with serve(tmp_path) as served:
        yield served


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project that is locked and not built; to be copied."""
    folder = tmp_path_factory.mktemp("template")
    with serve(folder) as served:
        fill(served)
        served.good("lock")
    return folder


@pytest.fixture(scope="session")
def made(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template with everything in its store that an environment is made of, and no environment: building on that is quicker."""
    folder = tmp_path_factory.mktemp("made") / "project"
    copy_tree(template, folder)
    with serve(folder) as served:
        served.good("build")
    for kind in ("envs", "receipts", "profiles", "generations", "state"):
        remove_tree(folder / "store" / kind)
    make_writable(folder / "store")
    return folder


@pytest.fixture
def locked(template: Path, tmp_path: Path) -> Iterator[Project]:
    """A project that is locked and not built: alpha needs beta, which is patched."""
    yield from _served_copy(template, tmp_path / "locked")


@pytest.fixture
def built(made: Path, tmp_path: Path) -> Iterator[Project]:
    """A project that is locked and built."""
    for served in _served_copy(made, tmp_path / "built"):
        served.good("build")
        assert served.index is not None
        served.index.requests.clear()
        yield served


def _served_copy(original: Path, folder: Path) -> Iterator[Project]:
    copy_tree(original, folder)
    with serve(folder) as served:
        yield served
