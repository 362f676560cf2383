"""`envspec export --format oci`: the same image every time, layers that are shared, and bases."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import platform
import random
import shutil
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from builder.image.layout import ImageLayout, read_base
from envspec.errors import EnvspecError
from envspec.lock_toml import parse_lock
from envspec.oci import REF_NAME, config_document, document_bytes
from tests.support.images import ENVIRONMENT, command, image_of, need, run_inside, site_of, unpacked, variables_of
from tests.support.projects import PYTHON_MINOR, base_python, serve, snapshot_of

if TYPE_CHECKING:
    from pathlib import Path

    from envspec.lock import Lock
    from tests.support.projects import Project


def lock_of(project: Project) -> Lock:
    return parse_lock(project.lock_text(), input_name="demo.lock")


def export(project: Project, output: Path, *more: str | Path, **changes: Any) -> dict[str, Any]:
    return project.good("export", "--format", "oci", "--out", output, "--json", *more, **changes).json()


def blobs_of(layout: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (layout / "blobs" / "sha256").iterdir()}


def change_patch(project: Project, value: int) -> None:
    project.write_patch("beta/__init__.py", "VALUE = 1", f"VALUE = {value}")
    project.good("lock")


def base_image(folder: Path, *, labels: dict[str, str] | None = None, architecture: str = "amd64") -> Path:
    """A layout with one image of one layer."""
    content = folder / "content"
    content.mkdir(parents=True)
    (content / "hello").write_text("of the base\n")
    tar = folder / "layer.tar"
    with tarfile.open(tar, "w") as archive:
        archive.add(content / "hello", "hello")
    raw = gzip.compress(tar.read_bytes(), mtime=0)
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/base/bin", "OWN=1"], "User": "1000", "Labels": labels or {}},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar.read_bytes()).hexdigest()}"]},
    }
    layout = folder / "layout"
    (layout / "blobs" / "sha256").mkdir(parents=True)

    def blob(content: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (layout / "blobs" / "sha256" / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    kind = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(config).encode(), f"{kind}.config.v1+json"),
        "layers": [blob(raw, f"{kind}.layer.v1.tar+gzip")],
    }
    entry = blob(json.dumps(manifest).encode(), f"{kind}.manifest.v1+json")
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return layout


def test_image_is_the_same_every_time_from_a_store_that_was_built_and_from_one_that_was_not(
    locked: Project, tmp_path: Path
) -> None:
    export(locked, tmp_path / "first")
    locked.good("build")
    shutil.rmtree(locked.store / "facts")  # what was measured, and which layer came of what
    export(locked, tmp_path / "second", TZ="Asia/Tokyo", LC_ALL="C", before=["sh", "-c", 'umask 077; exec "$@"', "sh"])
    with serve(tmp_path / "elsewhere") as other:
        for place in ("spec", "wheels"):
            shutil.copytree(locked.folder / place, other.folder / place, dirs_exist_ok=True)
        export(other, tmp_path / "third")
    first = snapshot_of(tmp_path / "first")
    for name in ("second", "third"):
        assert {path: raw for path, (_, raw) in snapshot_of(tmp_path / name).items()} == {
            path: raw for path, (_, raw) in first.items()
        }


def test_blobs_have_the_digests_that_name_them_and_the_contents_that_they_state(
    locked: Project, tmp_path: Path
) -> None:
    record = export(locked, tmp_path / "out")
    for name, raw in blobs_of(tmp_path / "out").items():
        assert hashlib.sha256(raw).hexdigest() == name
    manifest, config = image_of(tmp_path / "out", "demo")
    assert [layer["digest"] for layer in manifest["layers"]] == [layer["digest"] for layer in record["layers"]]
    for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        raw = gzip.decompress((tmp_path / "out/blobs/sha256" / layer["digest"][7:]).read_bytes())
        assert f"sha256:{hashlib.sha256(raw).hexdigest()}" == diff_id
        assert len((tmp_path / "out/blobs/sha256" / layer["digest"][7:]).read_bytes()) == layer["size"]
    lock = lock_of(locked)
    for kept in (manifest["annotations"], config["config"]["Labels"]):
        assert (kept["io.envspec.env"], kept["io.envspec.site"]) == (lock.env, lock.site)
    assert len(config["history"]) == len(manifest["layers"])


def test_umoci_unpacks_the_locked_tree_and_its_programs_run(locked: Project, tmp_path: Path) -> None:
    python = base_python()
    export(locked, tmp_path / "out", "--python", str(python))
    root = unpacked(tmp_path / "out", "demo", tmp_path / "image")
    assert site_of(root) == lock_of(locked).site
    variables = variables_of(image_of(tmp_path / "out", "demo")[1])
    assert run_inside(root, ["alpha", "more"], variables=variables) == "alpha 2 more\n"
    lock = lock_of(locked)
    said = run_inside(root, ["python", "-c", "import sys, beta; print(sys.prefix, beta.__file__)"], variables=variables)
    assert said.split()[0] == f"/{ENVIRONMENT}"
    for path in (f"/opt/envspec/envs/{lock.env}-demo", "/opt/envspec/profiles/demo"):
        assert run_inside(root, [f"{path}/bin/alpha"], variables=variables) == "alpha 2\n"
    assert (root / f"opt/envspec/state/{lock.env}").stat().st_mode & 0o7777 == 0o1777
    ran = locked.good("verify", "--python", root / ENVIRONMENT / "bin" / "python")
    assert "2 of 2 are bit for bit the locked ones" in ran.text


COMPILED = """
import sys
compiled = []
sys.addaudithook(lambda event, given: compiled.append(given[1]) if event == "compile" else None)
import alpha, beta, os
print(beta.VALUE, os.path.exists(beta.__cached__), [path for path in compiled if str(path).startswith("/opt/envspec/")])
"""


def test_containers_compile_nothing_unless_somebody_edits_a_module_there(locked: Project, tmp_path: Path) -> None:
    record = export(locked, tmp_path / "out", "--python", str(base_python()))
    root = unpacked(tmp_path / "out", "demo", tmp_path / "image")
    variables = variables_of(image_of(tmp_path / "out", "demo")[1])
    assert record["bytecode"] == platform.python_version()
    del variables["PYTHONDONTWRITEBYTECODE"]  # so that it would be seen if Python had something to write
    before = snapshot_of(root / ENVIRONMENT)
    assert run_inside(root, ["python", "-c", COMPILED], variables=variables) == "2 True []\n"
    assert snapshot_of(root / ENVIRONMENT) == before

    module = root / ENVIRONMENT / f"lib/python{PYTHON_MINOR}/site-packages/beta/__init__.py"
    status = module.stat()
    module.chmod(0o644)
    module.write_text(module.read_text().replace("VALUE = 2", "VALUE = 7"))
    os.utime(module, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run_inside(root, ["python", "-c", COMPILED], variables=variables).startswith("7 True ['/opt/envspec/")


def test_bytecode_lies_in_layers_of_its_own_and_is_no_part_of_the_site(locked: Project, tmp_path: Path) -> None:
    """Without it every other layer is the same; the site digest is proven with it and without."""
    out = tmp_path / "out"
    compiled = export(locked, out, "--tag", "compiled")
    plain = export(locked, out, "--tag", "plain", "--no-bytecode", PATH="/usr/bin:/bin", UV=None)
    assert plain["bytecode"] is None
    more = [layer["title"] for layer in compiled["layers"] if layer not in plain["layers"]]
    assert more
    assert all(title.startswith("bytecode") for title in more)
    assert all(layer in compiled["layers"] for layer in plain["layers"])
    assert "io.envspec.bytecode" not in image_of(out, "plain")[0]["annotations"]
    label = image_of(out, "compiled")[0]["annotations"]["io.envspec.bytecode"]
    assert label.endswith(f" {platform.python_version()}")
    for tag in ("compiled", "plain"):
        root = unpacked(out, tag, tmp_path / tag)
        assert site_of(root) == lock_of(locked).site
        assert bool(list(root.rglob("*.pyc"))) == (tag == "compiled")


def test_exporting_again_writes_nothing_and_another_patch_only_what_it_changes(locked: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = export(locked, out)
    assert export(locked, out)["written"] == 0
    blobs = blobs_of(out)
    change_patch(locked, 3)
    after = export(locked, out)
    changed = {layer["title"] for layer in after["layers"] if layer not in before["layers"]}
    assert changed == {"patched packages", "bytecode of patched modules", "activation"}
    new = blobs_of(out).keys() - blobs.keys()
    assert sum(len(blobs_of(out)[name]) for name in new) == after["written"]
    assert len(new) == 7  # three layers, configuration, manifest, the bill of materials and its manifest


def test_several_locks_share_a_layout_and_each_keeps_its_name(locked: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = export(locked, out, "--tag", "v1")
    change_patch(locked, 3)
    second = export(locked, out, "--tag", "v2")
    assert first["image"] != second["image"]
    for tag, record in (("v1", first), ("v2", second)):
        manifest, _ = image_of(out, tag)
        assert [layer["digest"] for layer in manifest["layers"]] == [layer["digest"] for layer in record["layers"]]


def test_bill_of_materials_refers_to_the_image(locked: Project, tmp_path: Path) -> None:
    record = export(locked, tmp_path / "out")
    bill, _ = image_of(tmp_path / "out", "demo.sbom")
    assert bill["subject"]["digest"] == record["image"]
    assert bill["artifactType"] == "application/vnd.cyclonedx+json"
    text = (tmp_path / "out/blobs/sha256" / bill["layers"][0]["digest"][7:]).read_text()
    assert text == locked.good("export", "--format", "cyclonedx").stdout


def test_archive_is_one_file_that_skopeo_reads_and_nothing_stays_beside_it(locked: Project, tmp_path: Path) -> None:
    need("skopeo")
    record = export(locked, tmp_path / "a" / ".." / "demo.tar")
    export(locked, tmp_path / "again.tar")
    assert (tmp_path / "demo.tar").read_bytes() == (tmp_path / "again.tar").read_bytes()
    said = json.loads(command("skopeo", "inspect", f"oci-archive:{tmp_path}/demo.tar:demo"))
    assert said["Digest"] == record["image"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.tar", "demo.tar", "locked"]


def test_base_lies_below_and_keeps_its_configuration(locked: Project, tmp_path: Path) -> None:
    base = base_image(tmp_path / "base")
    export(locked, tmp_path / "out", "--base", base)
    manifest, config = image_of(tmp_path / "out", "demo")
    variables = variables_of(config)
    assert variables["PATH"] == f"/{ENVIRONMENT}/bin:/base/bin"
    assert variables["OWN"] == "1"
    assert config["config"]["User"] == "1000"
    assert len(config["history"]) == len(manifest["layers"]) == len(config["rootfs"]["diff_ids"])
    assert manifest["annotations"]["org.opencontainers.image.base.digest"].startswith("sha256:")
    root = unpacked(tmp_path / "out", "demo", tmp_path / "image")
    assert (root / "hello").read_text() == "of the base\n"
    assert site_of(root) == lock_of(locked).site


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("digest", "its name says"),
        ("layer", "a blob of the base has sha256"),
        ("missing", "is missing"),
        ("no layout", "is no OCI image layout"),
        ("index", "is no JSON object that an image has"),
        ("name", "has 0 images named `other`"),
        ("machine", "the base is for linux/s390x, the lock for linux/"),
        ("environment", "the base has an environment already, abc"),
        ("escape", "is no digest of sha256"),
    ],
)
def test_base_that_is_not_what_it_says_is_refused(locked: Project, tmp_path: Path, how: str, said: str) -> None:
    labels = {"io.envspec.env": "abc"} if how == "environment" else None
    base = base_image(tmp_path / "base", labels=labels, architecture="s390x" if how == "machine" else "amd64")
    index = json.loads((base / "index.json").read_text())
    (entry,) = index["manifests"]
    blob = base / "blobs" / "sha256" / entry["digest"][7:]
    manifest = json.loads(blob.read_text())
    match how:
        case "digest":
            blob.write_text(json.dumps({**manifest, "layers": []}))
        case "layer":
            layer = base / "blobs" / "sha256" / manifest["layers"][0]["digest"][7:]
            layer.write_bytes(layer.read_bytes()[:-1] + b"x")
        case "missing":
            blob.unlink()
        case "no layout":
            (base / "oci-layout").unlink()
        case "index":
            (base / "index.json").write_text("[" * 100_000)
        case "escape":
            entry["digest"] = "sha256:../../../../etc/passwd"
            (base / "index.json").write_text(json.dumps(index))
        case _:
            pass
    reference = f"{base}:other" if how == "name" else str(base)
    ran = locked.run("export", "--format", "oci", "--out", tmp_path / "out", "--base", reference)
    assert ran.code in {1, 2}
    assert said in ran.stderr
    assert not (tmp_path / "out" / "index.json").exists()


def test_damaged_wheel_is_not_packed_and_nothing_half_made_stays(locked: Project, tmp_path: Path) -> None:
    wheel = next(locked.store.glob("wheels/*/alpha-*.whl"))
    wheel.chmod(0o644)
    content = bytearray(wheel.read_bytes())
    content[40] ^= 1
    wheel.write_bytes(content)
    ran = locked.run("export", "--format", "oci", "--out", tmp_path / "out")
    assert ran.code == 1
    assert "in the store has sha256" in ran.stderr
    assert list((tmp_path / "out" / "blobs" / "sha256").glob(".*")) == []
    assert not (tmp_path / "out" / "index.json").exists()


def test_layout_of_an_export_that_was_killed_is_gone_on_with(locked: Project, tmp_path: Path) -> None:
    record = export(locked, tmp_path / "out")
    (tmp_path / "out" / "index.json").unlink()
    next((tmp_path / "out" / "blobs" / "sha256").iterdir()).unlink()
    (tmp_path / "out" / "blobs" / "sha256" / ".envspec-999999999-layer").write_text("half")
    assert export(locked, tmp_path / "out")["image"] == record["image"]
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".envspec-999999999-oci-layout").write_text("half")
    assert export(locked, tmp_path / "out")["image"] == record["image"]
    assert not list((tmp_path / "out").rglob(".envspec-*"))


@pytest.mark.parametrize(
    "index",
    [
        '{"manifests": [{"digest": 5}]}',
        '{"manifests": 5}',
        '{"manifests": [{"digest": "a", "size": 1e999}]}',
        '{"manifests": [{"digest": "a", "x": "\\ud800"}]}',
        "[",
    ],
)
def test_layout_whose_index_is_none_is_refused_and_stays_as_it_is(tmp_path: Path, index: str) -> None:
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(EnvspecError):
        ImageLayout(tmp_path).publish({"demo": {"digest": "sha256:0"}})
    assert (tmp_path / "index.json").read_text() == index


@pytest.mark.parametrize("annotations", [None, [], 5, {REF_NAME: 5}, {REF_NAME: "other"}])
def test_image_that_others_named_oddly_keeps_its_entry(tmp_path: Path, annotations: Any) -> None:
    entry = {"digest": "sha256:1", "annotations": annotations}
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [entry, {"digest": "sha256:2"}]}))
    ImageLayout(tmp_path).publish({"demo": {"digest": "sha256:0"}})
    digests = {each["digest"] for each in json.loads((tmp_path / "index.json").read_text())["manifests"]}
    assert digests == {"sha256:0", "sha256:1", "sha256:2"}


def test_damaged_blob_of_the_layout_is_written_anew(locked: Project, tmp_path: Path) -> None:
    record = export(locked, tmp_path / "out")
    blob = tmp_path / "out" / "blobs" / "sha256" / record["layers"][0]["digest"][7:]
    blob.write_bytes(b"\0" * blob.stat().st_size)
    assert export(locked, tmp_path / "out")["written"] == blob.stat().st_size
    assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name


def test_memory_of_layers_that_lies_is_found_out(locked: Project, tmp_path: Path) -> None:
    record = export(locked, tmp_path / "out")
    for memory in (locked.store / "facts").glob("layer-*.json"):
        memory.write_text('{"digest": "../../../x", "size": 1, "diff_id": ""}')
    assert export(locked, tmp_path / "second")["image"] == record["image"]


def test_pinned_python_is_a_layer_and_the_environment_runs_on_it(project: Project, tmp_path: Path) -> None:
    """The archive here is not a whole Python: what counts is where its interpreter is looked for."""
    inside = tmp_path / "inside" / "python" / "bin"
    inside.mkdir(parents=True)
    (inside / f"python{PYTHON_MINOR}").write_text("#!/bin/sh\necho the pinned one\n")
    (inside / f"python{PYTHON_MINOR}").chmod(0o755)
    (inside / "python3").symlink_to(f"python{PYTHON_MINOR}")
    with tarfile.open(project.spec_folder / "python.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "inside" / "python", "python")
    sha256 = hashlib.sha256((project.spec_folder / "python.tar.gz").read_bytes()).hexdigest()
    project.wheel("alpha", "1.0", {"alpha.py": ""})
    project.write_spec({"alpha": "==1.0"}, python=f'archive = "python.tar.gz"\narchive-sha256 = "{sha256}"')
    project.good("lock")
    ran = project.run("export", "--format", "oci", "--out", tmp_path / "out")
    assert ran.code == 2  # bytecode is made by the pinned Python, which this one cannot do
    assert "does not start: rc 0: the pinned one" in ran.stderr
    assert "`--no-bytecode` makes an image without bytecode" in ran.stderr
    record = export(project, tmp_path / "out", "--no-bytecode")
    assert record["bytecode"] is None
    assert record["python"] == f"/opt/envspec/pythons/{sha256}/python/bin/python{PYTHON_MINOR}"
    assert record["layers"][0]["title"] == "Python"
    again = export(project, tmp_path / "out", "--no-bytecode")
    assert (again["written"], again["image"]) == (0, record["image"])
    root = unpacked(tmp_path / "out", "demo", tmp_path / "image")
    variables = variables_of(image_of(tmp_path / "out", "demo")[1])
    assert run_inside(root, ["python"], variables=variables) == "the pinned one\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "oci"], "`--format oci` needs a place"),
        (["--format", "oci", "--out", "o", "--tag", "a b"], "`a b` is no tag that registries take"),
        (["--format", "oci", "--out", "o", "--python", "python3"], "`python3` is no absolute path of a Python"),
        (["--format", "oci", "--out", "o", "--wheelhouse", "w"], "`--wheelhouse` is not for `--format oci`"),
        (["--format", "oci", "--out", "."], "is not empty, and no OCI image layout"),
        (["--format", "bundle", "--out", "."], "is not empty, and no bundle"),
        (["--format", "bundle", "--out", "o", "--tag", "x"], "`--tag` is for images"),
        (["--format", "bundle", "--out", "o", "--no-bytecode"], "`--no-bytecode` is for images"),
        (["--format", "pylock", "--no-bytecode"], "`--no-bytecode` is for images"),
        (["--format", "pylock", "--base", "x"], "`--base` is for images"),
        (["--format", "oci", "--out", "o", "--tag", "demo.sbom"], "it is for bills of materials"),
        (["--format", "oci", "--out", "o", "--base", ""], "`--base` names no image"),
        (["--format", "oci", "--out", "demo.toml"], "/demo.toml` is no folder"),
        (["--format", "bundle", "--out", "demo.toml"], "/demo.toml` is no folder"),
        (["--format", "oci", "--out", "folder.tar"], "/folder.tar` is a folder"),
        (["--format", "bundle", "--out", "folder.tar"], "/folder.tar` is a folder"),
        (["--format", "oci", "--out", "demo.toml/x"], "/demo.toml/x` cannot be written: Not a directory"),
        (["--format", "bundle", "--out", "demo.toml/x.tar"], "/demo.toml/x.tar` cannot be written: File exists"),
    ],
)
def test_options_that_do_not_fit_are_refused(locked: Project, arguments: list[str], said: str) -> None:
    (locked.spec_folder / "folder.tar").mkdir()
    before = snapshot_of(locked.spec_folder)
    ran = locked.run("export", *arguments)
    assert ran.code == 2
    assert said in ran.stderr
    assert snapshot_of(locked.spec_folder) == before


def test_odd_wheels_are_in_the_image_as_they_are_in_a_build(project: Project, tmp_path: Path) -> None:
    """Stored members, scripts, data, empty files, long paths and such that are not ASCII, and a path that two wheels contend for."""
    long = "/".join(["folder" * 20] * 3)
    files: dict[str, bytes | str] = {
        "alpha/__init__.py": "",
        "alpha/ü %s.txt": "not ASCII\n",
        f"alpha/{long}/f.txt": "deep\n",
        "alpha/large.bin": bytes(range(256)) * 2000,
        "shared.txt": "of alpha\n",
    }
    project.wheel(
        "alpha",
        "1.0",
        files,
        data={"scripts/run-it": "#!python\nprint('ran')\n", "data/share/alpha.conf": "x\n"},
        executable=["alpha/large.bin"],
    )
    project.wheel("beta", "1.0", {"beta.py": "x = 1\n", "shared.txt": "of beta\n"}, compression=zipfile.ZIP_STORED)
    waiver = '[[waivers]]\ncheck = "file-collision"\npackage = "alpha"\npath = "shared.txt"\nowner = "beta"\nreason = "a test"\n'
    project.write_spec({"alpha": "==1.0", "beta": "==1.0"}, more=waiver)
    project.good("lock")
    export(project, tmp_path / "out", "--python", str(base_python()))
    root = unpacked(tmp_path / "out", "demo", tmp_path / "image")
    assert site_of(root) == lock_of(project).site
    variables = variables_of(image_of(tmp_path / "out", "demo")[1])
    assert run_inside(root, ["run-it"], variables=variables) == "ran\n"
    site = root / ENVIRONMENT / f"lib/python{PYTHON_MINOR}/site-packages"
    assert (site / "shared.txt").read_text() == "of beta\n"
    assert "shared.txt" not in (site / "alpha-1.0.dist-info" / "RECORD").read_text()
    project.good("build")
    assert site_of_build(project) == lock_of(project).site


def site_of_build(project: Project) -> str:
    (host,) = project.good("build", "--json").json()["hosts"]
    assert isinstance(host["site"], str)
    return host["site"]


@pytest.mark.parametrize("seed", range(3))
def test_base_of_any_documents_never_breaks_an_export(tmp_path: Path, seed: int) -> None:
    """Values of the three documents are replaced at random: what is refused is refused with words."""
    chance = random.Random(seed)  # noqa: S311 - to be the same each time
    junk: list[Any] = [None, True, -1, 1.5, "", "x", [], {}, [[]], {"a": None}, "sha256:" + "0" * 64, float("nan")]

    def bend(value: Any) -> Any:
        if chance.random() < 0.12:
            return chance.choice(junk)
        if isinstance(value, dict):
            return {key: bend(each) for key, each in value.items()}
        return [bend(each) for each in value] if isinstance(value, list) else value

    for number in range(100):
        layout = base_image(tmp_path / f"{number}")
        blobs = layout / "blobs" / "sha256"
        index = json.loads((layout / "index.json").read_text())
        manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_text())
        config = json.loads((blobs / manifest["config"]["digest"][7:]).read_text())
        for owner, key, value in ((manifest, "config", bend(config)), (index["manifests"], 0, None)):
            raw = json.dumps(bend(manifest) if value is None else value).encode()
            digest = hashlib.sha256(raw).hexdigest()
            (blobs / digest).write_bytes(raw)
            owner[key].update(digest=f"sha256:{digest}", size=len(raw))
        (layout / "index.json").write_text(json.dumps(bend(index)))
        with contextlib.suppress(EnvspecError):
            base = read_base(str(layout), "amd64")
            config_document(base.config, (), platform="linux-x86_64", environ={}, path="/x", labels={})
            document_bytes(base.config)
