"""An image of real wheels, one of them patched: unpacked by umoci, run in a namespace, pushed by skopeo.

`ENVSPEC_REAL_STORE=<store> uv run pytest -m real tests/real/test_real_images.py`. The whole committed environment takes 12 GB more, and minutes:
with `ENVSPEC_REAL_IMAGE=1` it is done too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.agent.driver_stub import BuiltStub, build_stub, driver_symbols, find_compiler
from envspec.lock_toml import parse_lock
from tests.support.image_registry import Registry
from tests.support.images import ENVIRONMENT, command, image_of, need, run_inside, site_of, unpacked, variables_of
from tests.support.projects import Project, remove_tree
from tests.support.real_subset import change, real_interpreter, real_subset

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real

STORE = os.environ.get("ENVSPEC_REAL_STORE", "")
if not STORE:
    pytest.skip("ENVSPEC_REAL_STORE names no folder for the real environment", allow_module_level=True)

PACKAGES = {"transformers": "==5.6.0", "numpy": "==2.3.5", "pillow": "==12.2.0"}
IMPORTS = ("numpy", "PIL.Image", "transformers")
IMPORT = """
import sys
compiled = []
sys.addaudithook(lambda event, given: compiled.append(given[1]) if event == "compile" else None)
import sglang, sgl_kernel, torchvision, sglang.srt.speculative.spec_info
print(sglang.__file__)
print([path for path in compiled if str(path).startswith("/opt/envspec/")])
"""
ACTIVATION_BYTES = 64 << 10
"""What each image has of its own at most: last layer, configuration, manifest, and what HTTP adds."""


def export(project: Project, *more: str | Path) -> dict[str, Any]:
    return project.good("export", "--format", "oci", "--json", *more).json()


@pytest.fixture(scope="module")
def subset() -> Iterator[Project]:
    folder = Path(STORE) / ".real-images"  # on the same file system: the wheels are linked
    remove_tree(folder)
    try:
        with real_subset(folder, Path(STORE) / "wheels", packages=PACKAGES, imports=IMPORTS) as made:
            yield made
    finally:
        remove_tree(folder)


def test_real_image_runs_and_another_patch_sends_only_its_layer(subset: Project) -> None:
    need("umoci", "skopeo", "docker-registry")
    out, python = subset.folder / "out", real_interpreter().path
    subset.environment["PATH"] = f"{python.parent}:/usr/bin:/bin"  # that compiles
    first = export(subset, "--out", out, "--python", str(python), "--tag", "first")
    lock = parse_lock(subset.lock_text(), input_name="demo.lock")
    root = unpacked(out, "first", subset.folder / "image")
    assert site_of(root) == lock.site
    variables = variables_of(image_of(out, "first")[1])
    imported = f"import {', '.join(IMPORTS)}; print(transformers.__file__)"
    said = run_inside(root, ["python", "-W", "ignore", "-c", imported], variables=variables, python=python.parents[1])
    assert said.startswith(f"/{ENVIRONMENT}/lib/python3.12/site-packages/transformers/")
    shutil.rmtree(subset.folder / "image")

    change(subset, subset.folder / "wheels", "theirs")
    subset.good("lock")
    second = export(subset, "--out", out, "--python", str(python), "--tag", "second")
    changed = [layer for layer in second["layers"] if layer not in first["layers"]]
    assert [layer["title"] for layer in changed] == ["patched packages", "bytecode of patched modules", "activation"]
    with Registry(subset.folder / "registry") as registry:
        everything = registry.push(out, "first")
        assert everything > first["size"]
        more = registry.push(out, "second")
        size = sum(layer["size"] for layer in changed[:2])
        assert size < more < size + ACTIVATION_BYTES
        assert registry.digest("second") == second["image"]


@pytest.mark.skipif(not os.environ.get("ENVSPEC_REAL_IMAGE"), reason="ENVSPEC_REAL_IMAGE asks for it: 12 GB, minutes")
def test_whole_environment_imports_sglang_in_its_image(tmp_path: Path) -> None:
    need("umoci")
    repository = Path(__file__).resolve().parents[2]
    folder = Path(STORE) / ".real-image"
    remove_tree(folder)
    python = real_interpreter().path
    try:
        project = Project(folder, None, store=Path(STORE))
        words: list[str | Path] = [
            "-m",
            "envspec",
            "export",
            "--format",
            "oci",
            "--out",
            folder / "out",
            "--python",
            python,
            "--json",
        ]
        environ = project.environ(PATH=f"{python.parent}:/usr/bin:/bin")
        said = command(sys.executable, *words, "--spec", repository / "ddtree.toml", environ=environ)
        lock = parse_lock((repository / "ddtree.lock").read_text(), input_name="ddtree.lock")
        root = unpacked(folder / "out", "ddtree", folder / "image")
        shutil.rmtree(folder / "out" / "blobs")
        assert site_of(root) == lock.site
        needs = driver_symbols([path for path in (root / ENVIRONMENT).rglob("*.so*") if path.is_file()])
        stub = build_stub(tmp_path / "stub", needs, find_compiler(os.environ), environ=os.environ)
        assert isinstance(stub, BuiltStub)
        assert json.loads(said)["env"] == lock.env
        variables = {"LD_LIBRARY_PATH": "/more", "PATH": f"/{ENVIRONMENT}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        said = run_inside(
            root,
            ["python", "-W", "ignore", "-c", IMPORT],
            variables=variables,
            python=python.parents[1],
            more=stub.folder,
        )
        path, compiled = said.splitlines()
        assert path.startswith(f"/{ENVIRONMENT}/lib/python3.12/site-packages/sglang/")
        assert compiled == "[]"
    finally:
        remove_tree(folder)
