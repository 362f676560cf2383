"""Venvs made of files alone, as an installer leaves them, for whatever looks at one without running it.

    venv = make_venv(tmp_path)
    install(venv, "demo", "1.0", {"demo/__init__.py": "x = 1\n"})

Nothing in them runs: `bin/python` is a link to whatever the test says.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.wheels import record_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MINOR = "3.12"
SITE = f"lib/python{MINOR}/site-packages"


def make_venv(folder: Path, *, python: str = sys.executable, config: Mapping[str, str] | None = None) -> Path:
    """An empty venv.

    Args:
        folder: Where it lies; made if it is missing.
        python: What `bin/python` links to.
        config: Settings of `pyvenv.cfg` that differ from the usual ones.
    """
    (folder / SITE).mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(python)
    (folder / "bin/python3").symlink_to("python")
    (folder / "bin/activate").write_text("# sh\n")
    settings = {"home": os.fspath(Path(python).resolve().parent), "version": f"{MINOR}.1", **(config or {})}
    (folder / "pyvenv.cfg").write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    return folder


def install(
    venv: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes | str] | None = None,
    *,
    site: str = SITE,
    requires: Sequence[str] = (),
    rows: Sequence[str] = (),
    without: Sequence[str] = (),
    metadata: Mapping[str, bytes | str] | None = None,
) -> Path:
    """Put a distribution into a venv.

    Args:
        venv: The venv.
        name: Of the project.
        version: Of it.
        files: Path within site-packages (`../../../bin/x` leads to `bin`) -> content; None stands for one module.
        site: Its folder of packages.
        requires: `Requires-Dist` lines.
        rows: Rows to add to RECORD.
        without: Files of the metadata folder that are not made.
        metadata: Other files of the metadata folder, or other contents.

    Returns:
        The metadata folder.
    """
    folder = venv / site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    headers = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    headers += [f"Requires-Dist: {requirement}" for requirement in requires]
    own: dict[str, bytes | str] = {
        "METADATA": "".join(f"{header}\n" for header in headers),
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "INSTALLER": "pip\n",
        **(metadata or {}),
    }
    listed: dict[str, bytes] = {}
    for path, content in (files if files is not None else {f"{name}/__init__.py": "x = 1\n"}).items():
        listed[path] = content.encode() if isinstance(content, str) else content
    for path, content in own.items():
        if path not in without:
            listed[f"{folder.name}/{path}"] = content.encode() if isinstance(content, str) else content
    for path, content in listed.items():
        target = venv / site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    if "RECORD" not in without and "RECORD" not in own:
        text = [*(record_row(path, content) for path, content in listed.items()), *rows, f"{folder.name}/RECORD,,"]
        (folder / "RECORD").write_text("".join(f"{row}\n" for row in text), encoding="utf-8")
    return folder
