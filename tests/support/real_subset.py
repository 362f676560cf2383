"""A real subset of the committed stack with a patched wheel: 200 MB, minutes instead of hours, and no network.

The wheels come from a wheelhouse (`<sha256>/<file>`), and uv resolves from an index on 127.0.0.1 that has all of them.
"""

from __future__ import annotations

import os
import zipfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.agent.interpreter import find_interpreter
from tests.support.local_index import LocalIndex
from tests.support.projects import Project

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builder.agent.interpreter import Interpreter

PYTHON = "3.12"
PACKAGES = {"transformers": "==5.6.0", "triton": "==3.6.0", "numpy": "==2.3.5", "pillow": "==12.2.0"}
IMPORTS = ("numpy", "PIL.Image", "triton", "transformers")
PATCHED = "transformers/dependency_versions_table.py"


def real_interpreter() -> Interpreter:
    """The Python of the subset.

    Raises:
        EnvspecError: There is none here.
    """
    return find_interpreter(PYTHON, environ=os.environ)


@contextmanager
def real_subset(
    folder: Path, wheelhouse: Path, *, packages: dict[str, str] | None = None, imports: Sequence[str] = IMPORTS
) -> Iterator[Project]:
    """A locked project of real wheels.

    Args:
        folder: Where it lies, on the file system of the wheelhouse.
        wheelhouse: Has the wheels of the committed lock.
        packages: Name -> specifier; `transformers` among them is patched.
        imports: Of [verify].
    """
    wanted = PACKAGES if packages is None else packages
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    for wheel in wheelhouse.glob("*/*.whl"):
        os.link(wheel, wheels / wheel.name)
    with LocalIndex(wheels, upload_time=None) as index:
        project = Project(folder, index)
        lines = ["envspec = 1", 'name = "demo"', "[python]", f'version = "{PYTHON}"', "[target]"]
        lines += ['platform = "linux-x86_64"', 'glibc = "2.35"', "[packages]"]
        lines += [f'{name} = "{specifier}"' for name, specifier in wanted.items()]
        if "transformers" in wanted:
            lines += ["[overlays.transformers]", 'series = "overlays/series"']
            change(project, wheels, "ours")
        quoted = ", ".join(f'"{module}"' for module in imports)
        lines += ["[verify]", f"imports = [{quoted}]"]
        project.spec_path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        project.good("lock")
        yield project


def change(project: Project, wheels: Path, word: str) -> None:
    """Patch one line of one module; another word makes another environment."""
    with zipfile.ZipFile(next(wheels.glob("transformers-*.whl"))) as archive:
        first = archive.read(PATCHED).decode().splitlines()[0]
    project.write_patch(PATCHED, first, f"{first} ({word})")
