"""Venvs as people make them: installed by uv from wheels, then changed by hand; and what a build of the adopted folder has otherwise."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

from envspec.printable import printable
from tests.support.projects import PYTHON_MINOR, base_python, uv_program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.projects import Project


def install_venv(
    folder: Path,
    project: Project,
    requirements: Sequence[str] = (),
    *,
    wheels: Sequence[Path] = (),
    link_mode: str = "copy",
) -> Path:
    """A venv with packages.

    Args:
        folder: The venv.
        project: Its index serves the packages.
        requirements: As uv has them.
        wheels: Installed by their path, so that they have a direct_url.json.
        link_mode: Of uv.
    """
    environ = project.environ(UV_CACHE_DIR=str(project.folder / "uv-cache"), UV_LINK_MODE=link_mode)
    if not folder.exists():
        _run(environ, "venv", "--quiet", "--python", base_python(), folder)
    if requirements or wheels:
        _run(environ, "pip", "install", "--quiet", "--python", folder, *requirements, *wheels)
    return folder


def site_of(venv: Path) -> Path:
    """Its site-packages."""
    return venv / "lib" / f"python{PYTHON_MINOR}" / "site-packages"


def differences(venv: Path, built: Path, report: dict[str, Any]) -> list[str]:
    """Paths that a report explains as the same bytes and that a build has otherwise, and files that only the build has.

    Args:
        venv: The venv.
        built: The environment that was built of the written folder.
        report: The JSON object of `envspec adopt`.
    """
    kinds = {each["path"]: each["kind"] for each in report["paths"]}
    wrong = []
    for path in files_of(venv):
        if kinds.get(printable(path), "same") in ("same", "patched"):
            there = built / path
            if not there.is_file() or there.read_bytes() != (venv / path).read_bytes():
                wrong.append(f"other: {path}")
    expected = {path for path, kind in kinds.items() if kind in ("restored", "made", "foreign", "unexplained")}
    patched = tuple(f"{each['package'].replace('-', '_')}-" for each in report["overlays"])
    wrong += [
        f"new: {path}"
        for path in files_of(built)
        if not (venv / path).exists()
        and printable(path) not in expected
        and not (".dist-info/" in path and path.partition("site-packages/")[2].startswith(patched))
        and path.rpartition("/")[2] not in ("INSTALLER", "RECORD")
    ]
    return sorted(wrong)


def files_of(root: Path) -> list[str]:
    """Every ordinary file of an environment that installers put there, relative to it."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and "__pycache__" not in path.parts
        and not str(path.relative_to(root)).startswith(
            ("bin/activate", "bin/Activate", "bin/python", "bin/deactivate", "bin/pydoc")
        )
        and path.parent != root
    )


def _run(environ: dict[str, str], *arguments: object) -> None:
    command = [uv_program(), *map(str, arguments)]
    done = subprocess.run(command, env=environ, capture_output=True, encoding="utf-8", check=False, timeout=120)
    assert done.returncode == 0, done.stderr
