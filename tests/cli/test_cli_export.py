"""`envspec export`: files that uv installs from, and what is refused."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
import tomllib

from envspec.lock import parts
from envspec.lock_toml import parse_lock
from tests.support.projects import CREDENTIALS, base_python, uv_program

if TYPE_CHECKING:
    from pathlib import Path

    from envspec.lock import Lock
    from tests.support.projects import Project


def lock_of(project: Project) -> Lock:
    return parse_lock(project.lock_text(), input_name="demo.lock")


def installed_from(project: Project, exported: Path) -> dict[str, str]:
    """Name -> version of what uv installs from a file into an empty venv."""
    venv = project.folder / "venv"
    environ = project.environ(UV_CACHE_DIR=str(project.folder / "uv-cache"), UV_NO_CONFIG="1")
    for command in (
        ["venv", "--quiet", "--python", base_python(), venv],
        ["pip", "sync", "--quiet", "--python", venv / "bin" / "python", exported],
    ):
        done = subprocess.run(
            [uv_program(), *map(str, command)], env=environ, cwd="/", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        [uv_program(), "pip", "list", "--format=json", "--python", str(venv / "bin" / "python")],
        env=environ,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return {each["name"]: each["version"] for each in json.loads(listed.stdout)}


@pytest.mark.parametrize(("format_", "name"), [("pylock", "pylock.demo.toml"), ("requirements", "requirements.txt")])
def test_uv_installs_the_same_packages_from_a_wheelhouse(locked: Project, format_: str, name: str) -> None:
    target = locked.folder / "out" / name
    target.parent.mkdir()
    wheels = locked.folder / "out" / "wheels"
    locked.good("export", "--format", format_, "--wheelhouse", wheels, "--output", target)
    lock = lock_of(locked)
    assert sorted(path.name for path in wheels.iterdir()) == sorted(part.file for part in parts(lock))
    (overlay,) = lock.overlays
    assert installed_from(locked, target) == {"alpha": "1.0", "beta": overlay.version}


def test_wheelhouse_and_file_may_move_together(locked: Project) -> None:
    folder = locked.folder / "out"
    folder.mkdir()
    locked.good("export", "--format", "pylock", "--wheelhouse", folder / "w", "-o", folder / "pylock.toml")
    moved = folder.rename(locked.folder / "elsewhere")
    assert len(installed_from(locked, moved / "pylock.toml")) == 2


def test_pylock_without_a_wheelhouse_has_the_addresses_of_the_index_and_no_credential(project: Project) -> None:
    project.wheel("alpha", "1.0", {"alpha.py": ""})
    project.write_spec({"alpha": "==1.0"})
    project.good("lock")
    text = project.good("export", "--format", "pylock").stdout
    (wheel,) = tomllib.loads(text)["packages"][0]["wheels"]
    assert wheel["url"].startswith("http://127.0.0.1:")
    for secret in CREDENTIALS:
        assert secret not in text


def test_patched_wheel_without_a_wheelhouse_is_refused(locked: Project) -> None:
    for format_ in ("pylock", "requirements"):
        ran = locked.run("export", "--format", format_)
        assert ran.code == 2
        assert "`beta` is patched, and no index has a patched wheel" in ran.stderr
        assert ran.stdout == ""


def test_wheel_in_the_wheelhouse_with_other_bytes_is_replaced(locked: Project) -> None:
    wheels = locked.folder / "w"
    wheels.mkdir()
    (part, _) = parts(lock_of(locked))
    (wheels / part.file).write_text("not a wheel")
    locked.good("export", "--format", "requirements", "--wheelhouse", wheels, "-o", locked.folder / "r.txt")
    assert (wheels / part.file).stat().st_size == part.size


def test_damaged_wheel_of_the_store_is_not_handed_on(locked: Project) -> None:
    (part, _) = parts(lock_of(locked))
    wheel = locked.store / "wheels" / part.sha256 / part.file
    wheel.chmod(0o644)
    content = bytearray(wheel.read_bytes())
    content[40] ^= 1
    wheel.write_bytes(content)
    ran = locked.run("export", "--format", "pylock", "--wheelhouse", "w", "-o", "pylock.toml")
    assert ran.code == 1
    assert f"the lock has {part.sha256}" in ran.stderr
    assert not (locked.spec_folder / "pylock.toml").exists()
    assert not (locked.spec_folder / "w" / part.file).exists()


def test_name_that_pep_751_forbids_is_refused_before_anything_is_made(locked: Project) -> None:
    ran = locked.run("export", "--format", "pylock", "--wheelhouse", "w", "-o", "lock.toml")
    assert ran.code == 2
    assert "`lock.toml` is not a name that PEP 751 allows" in ran.stderr
    assert not (locked.spec_folder / "w").exists()


def test_stale_lock_is_not_exported(locked: Project) -> None:
    locked.spec_path.write_text(locked.spec_path.read_text().replace("==1.0", ">=1"))
    ran = locked.run("export", "--format", "cyclonedx")
    assert ran.code == 1
    assert "the lock does not describe the spec any more" in ran.stderr


def test_bill_of_materials_needs_neither_network_nor_store(locked: Project) -> None:
    ran = locked.good("export", "--format", "cyclonedx", "--store", "/proc/nowhere", watch=True, UV=None)
    assert ran.events == ()
    record = json.loads(ran.stdout)
    assert [component["name"] for component in record["components"]] == ["alpha", "beta"]
    assert "pedigree" in record["components"][1]


def test_export_as_json(locked: Project) -> None:
    record = locked.good("export", "--format", "cyclonedx", "--json").json()
    assert json.loads(record["text"])["bomFormat"] == "CycloneDX"
    record = locked.good("export", "--format", "cyclonedx", "--json", "-o", "bom.json").json()
    assert record["text"] is None
    assert (locked.spec_folder / "bom.json").is_file()
