"""uv and pip install the same packages from what is exported of real wheels, one of them patched.

`ENVSPEC_REAL_STORE=<store> uv run pytest -m real tests/real/test_real_exports.py`; pip comes from the index that uv is configured with.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envspec.lock_toml import parse_lock
from tests.support.projects import remove_tree, uv_program
from tests.support.real_subset import real_interpreter, real_subset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.projects import Project

pytestmark = pytest.mark.real

STORE = os.environ.get("ENVSPEC_REAL_STORE", "")
if not STORE:
    pytest.skip("ENVSPEC_REAL_STORE names no folder for the real environment", allow_module_level=True)


@pytest.fixture(scope="module")
def exported() -> Iterator[Project]:
    """A locked subset with `pylock.toml`, `requirements.txt` and their wheels in `out`."""
    folder = Path(STORE) / ".real-exports"  # on the same file system: the wheels are linked
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with real_subset(
            folder, Path(STORE) / "wheels", packages={"transformers": "==5.6.0", "pillow": "==12.2.0"}
        ) as made:
            out = made.folder / "out"
            out.mkdir()
            for format_, name in (("pylock", "pylock.toml"), ("requirements", "requirements.txt")):
                made.good("export", "--format", format_, "--wheelhouse", out / "wheels", "-o", out / name)
            yield made
    finally:
        remove_tree(folder)


@pytest.mark.parametrize("name", ["pylock.toml", "requirements.txt"])
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_installer_gives_exactly_the_locked_packages(
    exported: Project, installer: str, name: str, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    python = venv / "bin" / "python"
    file = exported.folder / "out" / name
    seed = ["--seed"] if installer == "pip" else []
    run(uv_program(), "venv", "--quiet", *seed, "--python", real_interpreter().path, venv)
    own = set(packages_of(python))
    if installer == "uv":
        run(uv_program(), "pip", "sync", "--quiet", "--offline", "--python", python, file)
    else:
        run(python, "-m", "pip", "install", "--quiet", "--no-index", "-r", file)
    found = packages_of(python)
    lock = parse_lock(exported.lock_text(), input_name="demo.lock")
    versions = {package.name: package.version for package in lock.packages}
    versions |= {overlay.package: overlay.version for overlay in lock.overlays}
    assert {name: version for name, version in found.items() if name not in own - versions.keys()} == versions
    (overlay,) = lock.overlays
    done = run(python, "-c", "import transformers; print(transformers.__file__)", cwd="/")
    site = Path(done.strip()).parent
    assert "(ours)" in (site / "dependency_versions_table.py").read_text(encoding="utf-8")
    assert overlay.package == "transformers"


def packages_of(python: Path) -> dict[str, str]:
    listed = run(uv_program(), "pip", "list", "--quiet", "--format=json", "--python", python)
    return {each["name"]: each["version"] for each in json.loads(listed)}


def run(*command: object, cwd: str | None = None) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout
