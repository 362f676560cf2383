"""A venv that pip made of real packages, then changed by hand -> adopted, locked, built: the same bytes for all that is explained.

`ENVSPEC_REAL_STORE=<store> uv run pytest -m real tests/real/test_real_adopt.py`; the packages come from the index that uv and pip are configured
with: some megabytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.handmade import differences, site_of
from tests.support.projects import Project, remove_tree
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

STORE = os.environ.get("ENVSPEC_REAL_STORE", "")
if not STORE:
    pytest.skip("ENVSPEC_REAL_STORE names no folder for the real environment", allow_module_level=True)

PACKAGES = ("requests==2.32.5", "rich==14.1.0", "click==8.2.1", "markupsafe==3.0.2")
OTHER = "markupsafe==3.0.1"


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    """A project with its own store and the user's own index."""
    folder = Path(STORE) / ".real-adopt"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        made = Project(folder, None)
        made.environment = {
            name: value
            for name, value in os.environ.items()
            if name in ("HOME", "SSL_CERT_FILE") or name.startswith(("UV_", "HTTP", "http", "NO_PROXY", "no_proxy"))
        }
        yield made
    finally:
        remove_tree(folder)


def test_venv_that_pip_made_comes_back_byte_for_byte_where_it_is_explained(project: Project) -> None:
    venv = project.folder / "venv"
    pip = [str(venv / "bin/pip"), "--disable-pip-version-check"]
    local = make_wheel(project.folder / "local", "ourtool", "1.4.2", {"ourtool/__init__.py": "VALUE = 1\n"})
    run(sys.executable, "-m", "venv", str(venv))
    run(*pip, "install", "--quiet", *PACKAGES)
    run(*pip, "install", "--quiet", "--no-deps", str(local))
    run(*pip, "download", "--quiet", "--no-deps", "--dest", str(project.folder / "other"), OTHER)
    site = site_of(venv)
    # Two packages edited, a file copied from another version, a module of nobody's.
    edit(site / "click/utils.py", b"import os\n", b"import os  # edited by hand\n")
    edit(site / "rich/console.py", b"import sys\n", b"import sys\nimport this_is_ours\n")
    (site / "rich/this_is_ours.py").write_text("OURS = 'without a last newline'")
    (other,) = (project.folder / "other").glob("*.whl")
    with zipfile.ZipFile(other) as archive:
        native = next(name for name in archive.namelist() if name.endswith(".so"))
        (site / native).write_bytes(archive.read(native))
    (site / "nobodys.py").write_text("x = 1\n")

    out = project.spec_folder / "out"
    report = project.good("adopt", venv, "--out", out, "--name", "demo", "--json").json()
    kinds = {each["path"].removeprefix(f"{site.relative_to(venv)}/"): each["kind"] for each in report["paths"]}
    assert {path: kind for path, kind in kinds.items() if kind != "made"} == {
        "click/utils.py": "patched",
        "rich/console.py": "patched",
        "rich/this_is_ours.py": "patched",
        native: "foreign",
        "nobodys.py": "unexplained",
    }
    foreign = next(each for each in report["paths"] if each["kind"] == "foreign")
    assert foreign["wheel"].lower().startswith("markupsafe-3.0.1-")
    assert report["local_wheels"] == [local.name]
    assert float(report["explained"]["files_percent"]) > 99

    project.good("lock", "--quiet", cwd=out)
    project.good("build", "--quiet", cwd=out)
    built = project.active()
    assert built is not None
    assert differences(venv, built, report) == []
    assert b"edited by hand" in (built / site.relative_to(venv) / "click/utils.py").read_bytes()


def edit(file: Path, before: bytes, after: bytes) -> None:
    content = file.read_bytes()
    assert before in content
    file.write_bytes(content.replace(before, after, 1))


def run(*command: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
