"""Venvs of real packages, changed by hand -> adopted, locked, and built: the same bytes for all that is explained.

`ENVSPEC_REAL_STORE=<store> uv run pytest -m real tests/real/test_real_adopt.py`; the packages come from the index that uv and pip are configured
with: some megabytes. The origin venv is a copy, of hard links, of the environment that tests/real/test_ddtree_environment.py built there.
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

from envspec.lock_toml import parse_lock
from tests.support.handmade import differences, site_of
from tests.support.projects import Project, make_writable, remove_tree, uv_program
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

STORE = os.environ.get("ENVSPEC_REAL_STORE", "")
if not STORE:
    pytest.skip("ENVSPEC_REAL_STORE names no folder for the real environment", allow_module_level=True)

ROOT = Path(__file__).parents[2]
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


PATCHED = (
    "models/dflash",
    "server_args",
    "speculative/dflash_info",
    "speculative/dflash_worker",
    "speculative/spec_info",
)


@pytest.fixture(scope="module")
def origin() -> Iterator[Path]:
    """The venv of the origin story: torch for CUDA 13.0, torchvision 0.24.1 over it, five patched files in SGLang 0.5.11."""
    built = sorted(Path(STORE).glob("envs/*-ddtree"))
    if not built:
        pytest.skip("the store has no environment `ddtree`")
    made = built[-1].resolve()
    venv = Path(STORE) / ".real-origin" / "venv"
    remove_tree(venv.parent)
    venv.parent.mkdir()
    try:
        run("cp", "-al", str(made), str(venv))  # files are only unlinked and put anew: none is written to
        make_writable(venv)
        site = venv / "lib/python3.12/site-packages"
        lock = parse_lock((ROOT / "ddtree.lock").read_text(encoding="utf-8"), input_name="ddtree.lock")
        base = next(package for package in lock.packages if package.name == "sglang")
        for folder in (site / "sglang", *site.glob("sglang-0.5.11*.dist-info")):
            shutil.rmtree(folder)
        with zipfile.ZipFile(Path(STORE) / "wheels" / base.sha256 / base.file) as archive:
            for name in archive.namelist():
                if not name.endswith("/"):
                    (site / name).unlink(
                        missing_ok=True
                    )  # else it would be written to in place, through its other names
            archive.extractall(site)
        for name in PATCHED:
            file = site / f"sglang/srt/{name}.py"
            file.unlink()
            shutil.copyfile(made / file.relative_to(venv), file)
        run(uv_program(), "pip", "install", "--quiet", "--no-deps", "--python", str(venv), "torchvision==0.24.1")
        yield venv
    finally:
        remove_tree(venv.parent)


def test_origin_venv_gives_its_five_patches_and_the_finding_that_refuses_its_lock(
    origin: Path, project: Project
) -> None:
    out = project.spec_folder / "origin"
    report = project.good("adopt", origin, "--out", out, "--name", "origin", "--json", ENVSPEC_STORE=STORE).json()
    assert report["explained"]["files_percent"] == "100"
    (overlay,) = report["overlays"]
    assert [file["path"] for file in overlay["files"]] == [f"sglang/srt/{name}.py" for name in sorted(PATCHED)]
    (refusal,) = report["refusals"]
    assert refusal["check"] == "cuda-major-mismatch"
    assert refusal["message"] == "torchvision 0.24.1 is built for CUDA 12.8, torch 2.11.0 for CUDA 13.0"
    assert "torchvision 0.26" in refusal["fix"]
    assert [(each["requester"], each["package"]) for each in report["conflicts"]] == [("torchvision 0.24.1", "torch")]
    # With the remedy the patches apply, and the set is locked.
    ran = project.run("lock", "--quiet", cwd=out, ENVSPEC_STORE=STORE)
    assert ran.code == 1
    assert "[cuda-major-mismatch]" in ran.stderr
    spec = out / "origin.toml"
    mended = spec.read_text(encoding="utf-8").replace('torchvision = "==0.24.1"', 'torchvision = "==0.26.0"')
    spec.write_text(mended, encoding="utf-8")
    project.good("lock", "--quiet", cwd=out, ENVSPEC_STORE=STORE)
    lock = parse_lock((out / "origin.lock").read_text(encoding="utf-8"), input_name="origin.lock")
    committed = parse_lock((ROOT / "ddtree.lock").read_text(encoding="utf-8"), input_name="ddtree.lock")
    assert {each.name: each.sha256 for each in lock.packages} == {each.name: each.sha256 for each in committed.packages}


def edit(file: Path, before: bytes, after: bytes) -> None:
    content = file.read_bytes()
    assert before in content
    file.write_bytes(content.replace(before, after, 1))


def run(*command: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
