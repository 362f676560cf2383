from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tomllib
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.markers import Marker
from packaging.pylock import Pylock

from envspec.errors import EnvspecError
from envspec.export_cyclonedx import cyclonedx_text
from envspec.exports import PYLOCK_NAME, Place, pylock_text, requirements_text
from envspec.lock import Lock, LockedPackage, parts
from envspec.lock_toml import parse_lock
from tests.conftest import DATA
from tests.support.projects import REPOSITORY

EVERY_FIELD = parse_lock(
    (DATA / "lock" / "every-field.lock").read_text(encoding="utf-8"), input_name="every-field.lock"
)
REAL = parse_lock((REPOSITORY / "ddtree.lock").read_text(encoding="utf-8"), input_name="ddtree.lock")
LOCKS = pytest.mark.parametrize("lock", [EVERY_FIELD, REAL], ids=["every-field", "ddtree"])


def places(lock: Lock) -> dict[str, Place]:
    return {part.sha256: Place(path=f"wheels/{part.file}") for part in parts(lock)}


def materials(lock: Lock) -> str:
    return cyclonedx_text(lock, roots=frozenset({lock.packages[0].name}), envspec_version="0.1.0")


@LOCKS
def test_pylock_is_one_that_packaging_accepts(lock: Lock) -> None:
    text = pylock_text(lock, places(lock))
    parsed = Pylock.from_dict(tomllib.loads(text))
    assert [package.name for package in parsed.packages] == [package.name for package in lock.packages]
    for part, package in zip(parts(lock), parsed.packages, strict=True):
        assert package.wheels is not None
        (wheel,) = package.wheels
        assert (wheel.name, wheel.size, wheel.hashes) == (part.file, part.size, {"sha256": part.sha256})
        assert wheel.path == f"wheels/{part.file}"
        assert wheel.url is None


def test_pylock_names_the_python_and_the_platform() -> None:
    document = tomllib.loads(pylock_text(EVERY_FIELD, places(EVERY_FIELD)))
    (marker,) = document["environments"]
    assert Marker(marker).evaluate(
        {"implementation_name": "cpython", "sys_platform": "linux", "platform_machine": "x86_64"}
    )
    assert not Marker(marker).evaluate(
        {"implementation_name": "cpython", "sys_platform": "linux", "platform_machine": "aarch64"}
    )
    assert document["requires-python"] == f"=={EVERY_FIELD.python_exact or EVERY_FIELD.python + '.*'}"
    exact = replace(EVERY_FIELD, python_exact=f"{EVERY_FIELD.python}.9")
    assert tomllib.loads(pylock_text(exact, places(exact)))["requires-python"] == f"=={EVERY_FIELD.python}.9"


@pytest.mark.parametrize(
    ("name", "is_allowed"),
    [
        ("pylock.toml", True),
        ("pylock.gpu.toml", True),
        ("pylock.a.b.toml", False),
        ("lock.toml", False),
        ("pylock..toml", False),
    ],
)
def test_names_that_pep_751_allows(name: str, is_allowed: bool) -> None:  # noqa: FBT001
    assert bool(PYLOCK_NAME.fullmatch(name)) is is_allowed


def test_requirements_have_the_hash_of_each_wheel_and_the_version_of_the_patched_one() -> None:
    text = requirements_text(REAL, wheelhouse="wheels")
    assert "--no-index\n--find-links wheels\n--only-binary :all:\n" in text
    assert text.count("--hash=sha256:") == len(REAL.packages)
    (overlay,) = REAL.overlays
    assert f"sglang=={overlay.version} \\\n    --hash=sha256:{overlay.sha256}\n" in text


def test_requirements_with_a_patched_wheel_and_without_a_wheelhouse_are_refused() -> None:
    with pytest.raises(EnvspecError) as caught:
        requirements_text(REAL, wheelhouse=None)
    assert caught.value.message == "`sglang` is patched, and no index has a patched wheel"
    assert "--wheelhouse" in caught.value.hint


def test_requirements_say_that_overrides_need_no_deps() -> None:
    lock = replace(EVERY_FIELD, overlays=(), overrides=("numpy==2.3.5",))
    assert "--no-deps" in requirements_text(lock, wheelhouse=None)
    assert "--no-deps" not in requirements_text(replace(lock, overrides=()), wheelhouse=None)


@LOCKS
def test_bill_of_materials_satisfies_the_official_schema(lock: Lock) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(materials(lock)) is None


def test_schema_finds_what_is_wrong() -> None:
    """The test above is worth what the validator sees."""
    record = json.loads(materials(EVERY_FIELD))
    record["components"][0]["hashes"][0]["alg"] = "SHA-257"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(record)) is not None


def test_bill_of_materials_is_the_same_bytes_for_the_same_lock_and_has_no_time() -> None:
    assert materials(REAL) == materials(REAL)
    record = json.loads(materials(REAL))
    assert "timestamp" not in record["metadata"]
    other = json.loads(materials(replace(REAL, env="a" * 32)))
    assert record["serialNumber"] != other["serialNumber"]


def test_patched_wheel_is_marked_with_its_pedigree() -> None:
    record = json.loads(materials(REAL))
    (overlay,) = REAL.overlays
    (patched,) = [component for component in record["components"] if "pedigree" in component]
    assert (patched["name"], patched["version"]) == ("sglang", overlay.version)
    assert patched["hashes"] == [{"alg": "SHA-256", "content": overlay.sha256}]
    (ancestor,) = patched["pedigree"]["ancestors"]
    assert ancestor["hashes"] == [{"alg": "SHA-256", "content": overlay.base_sha256}]
    assert [patch["diff"]["url"] for patch in patched["pedigree"]["patches"]] == [
        f"overlays/ddtree/{patch.name}" for patch in overlay.patches
    ]
    values = {each["name"]: each["value"] for each in patched["properties"]}
    assert values[f"envspec:patch:{overlay.patches[0].name}"] == f"sha256:{overlay.patches[0].sha256}"


def test_bill_of_materials_has_every_requirement() -> None:
    record = json.loads(materials(REAL))
    names = {component["bom-ref"]: component["name"] for component in record["components"]}
    assert len(names) == len(REAL.packages)
    below = {
        names[each["ref"]]: tuple(sorted(names[ref] for ref in each["dependsOn"]))
        for each in record["dependencies"][1:]
    }
    assert below == {package.name: package.requires for package in REAL.packages}


def test_hostile_names_of_files_stay_text() -> None:
    package = LockedPackage(
        name="a", version="1+x", index="default", file="a-1+x-py3-none-any.whl", size=1, sha256="0" * 64, tree="1" * 64
    )
    lock = replace(EVERY_FIELD, packages=(package,), overlays=(), findings=())
    record = json.loads(materials(lock))
    assert record["components"][0]["purl"] == "pkg:pypi/a@1%2Bx?file_name=a-1%2Bx-py3-none-any.whl"
