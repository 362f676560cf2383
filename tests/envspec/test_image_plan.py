from __future__ import annotations

from dataclasses import replace

from envspec.image_plan import BUCKETS, LARGE_BYTES, MOST_LARGE, Module, bucket_of, layer_key, plan_layers
from envspec.lock import Lock, LockedOverlay, LockedPackage, PatchedFile

LOCK = Lock(
    spec_sha256="0" * 64,
    env="e" * 32,
    site="5" * 64,
    name="demo",
    snapshot="",
    python="3.12",
    python_exact="",
    platform="linux-x86_64",
    glibc="2.35",
    libraries=(),
    cuda_toolkit="",
    cuda_compute=(),
    packages=(),
)


def package(name: str, size: int = 1000, sha256: str = "") -> LockedPackage:
    digest = sha256 or name.encode().hex().ljust(64, "0")[:64]
    file = f"{name}-1.0-py3-none-any.whl"
    return LockedPackage(name=name, version="1.0", index="default", file=file, size=size, sha256=digest, tree=digest)


def overlay(name: str, sha256: str = "a" * 64) -> LockedOverlay:
    return LockedOverlay(
        package=name,
        series="series",
        base_sha256="b" * 64,
        patches=(),
        files=(),
        version="1.0+demo",
        file=f"{name}-1.0+demo-py3-none-any.whl",
        size=1000,
        sha256=sha256,
        tree=sha256,
    )


def keys(lock: Lock) -> dict[str, str]:
    return {plan.title: layer_key(plan, lock.python, {}, {}) for plan in plan_layers(lock)}


def test_every_wheel_is_in_one_layer_and_patched_ones_are_on_top() -> None:
    names = [f"p{number:03}" for number in range(100)]
    lock = replace(
        LOCK,
        packages=(*map(package, names), package("torch", LARGE_BYTES)),
        overlays=(overlay("p007"), overlay("p008")),
    )
    plans = plan_layers(lock)
    assert sorted(part.package for plan in plans for part in plan.parts) == [*names, "torch"]
    assert plans[0].title == "torch"
    assert plans[-1].title == "patched packages"
    assert [part.package for part in plans[-1].parts] == ["p007", "p008"]
    assert len(plans) <= BUCKETS + 2


def test_another_patch_changes_one_layer() -> None:
    packages = (package("a"), package("b"), package("torch", LARGE_BYTES))
    before = keys(replace(LOCK, packages=packages, overlays=(overlay("a", "a" * 64),)))
    after = keys(replace(LOCK, packages=packages, overlays=(overlay("a", "c" * 64),)))
    assert [title for title in before if before[title] != after[title]] == ["patched packages"]


def test_package_that_comes_or_goes_changes_the_layer_of_its_name_alone() -> None:
    names = [f"p{number:03}" for number in range(60)]
    before = keys(replace(LOCK, packages=tuple(map(package, names))))
    after = keys(replace(LOCK, packages=tuple(map(package, [*names, "newcomer"]))))
    changed = [title for title in after if before.get(title) != after[title]]
    assert changed == [f"small packages {bucket_of('newcomer')}"]


def test_bytecode_is_apart_from_wheels_and_a_patch_changes_only_that_of_its_modules() -> None:
    packages = (package("a"), package("b"), package("data"), package("torch", LARGE_BYTES))
    site = "lib/python3.12/site-packages"

    def all_keys(patched: str, compiler: str = "cpython-312 3.12.1") -> dict[str, str]:
        change = replace(overlay("a", patched), files=(PatchedFile(path="a/x.py", before="0" * 64, after=patched),))
        lock = replace(LOCK, packages=packages, overlays=(change,))
        modules = [Module(package="a", path=f"{site}/a/x.py", sha256=patched, size=1)]
        modules += [
            Module(package=name, path=f"{site}/{name}/y.py", sha256="1" * 64, size=1) for name in ("torch", "a", "b")
        ]
        plans = plan_layers(lock, modules)
        found = {plan.title: layer_key(plan, "3.12", {}, {}, compiler) for plan in plans}
        assert {title: key for title, key in found.items() if not title.startswith("bytecode")} == keys(lock)
        assert sorted(module.path for plan in plans for module in plan.modules) == sorted(each.path for each in modules)
        assert [plan.title for plan in plans][-2:] == ["patched packages", "bytecode of patched modules"]
        return found

    before = all_keys("a" * 64)
    after = all_keys("c" * 64)
    other_python = all_keys("a" * 64, "cpython-312 3.12.9")
    changed = {title for title in before if before[title] != after[title]}
    assert changed == {"patched packages", "bytecode of patched modules"}
    assert {title for title in before if before[title] != other_python[title]} == {
        title for title in before if title.startswith("bytecode")
    }


def test_layers_stay_within_what_container_engines_take() -> None:
    large = tuple(package(f"large{number:03}", LARGE_BYTES + number) for number in range(200))
    plans = plan_layers(replace(LOCK, packages=large))
    assert len(plans) <= MOST_LARGE + BUCKETS
    assert sum(len(plan.parts) for plan in plans) == 200
    modules = [Module(package=each.name, path=f"{each.name}.py", sha256="0" * 64, size=1) for each in large]
    compiled = plan_layers(replace(LOCK, packages=large), modules)
    assert len(compiled) <= MOST_LARGE + 2 * BUCKETS < 100


def test_key_covers_wheels_trees_skipped_paths_and_contents_of_our_own() -> None:
    (plan,) = plan_layers(replace(LOCK, packages=(package("a"),)))
    found = {
        layer_key(plan, "3.12", {}, {}),
        layer_key(plan, "3.13", {}, {}),
        layer_key(plan, "3.12", {"a": frozenset({"x"})}, {}),
        layer_key(plan, "3.12", {}, {"x": b"1"}),
        layer_key(plan, "3.12", {}, {"x": b"2"}),
        layer_key(replace(plan, parts=(replace(plan.parts[0], sha256="f" * 64),)), "3.12", {}, {}),
        layer_key(replace(plan, parts=(replace(plan.parts[0], tree="f" * 64),)), "3.12", {}, {}),
    }
    assert len(found) == 7
    assert layer_key(plan, "3.12", {"b": frozenset({"x"})}, {}) == layer_key(plan, "3.12", {}, {})
