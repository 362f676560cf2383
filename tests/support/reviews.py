"""Sides of reviews: two real locks, and variants of one of them in which one thing is otherwise.

    old, new = torch_sides()            # torch 2.10.0 -> 2.13.0, as `envspec lock` decided both on 2026-11-30
    new = altered(old, packages={"pillow": {"index": "mirror"}})

`tests/data/review/torch-*.lock` were written by `envspec lock` from the specs beside them and are not edited.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envspec.diff.sides import Side, WheelContents
from envspec.lock import LockedOverlay, LockedPackage, LockedPatch, PatchedFile, compute_env_id
from envspec.lock_toml import dump_lock, parse_lock
from envspec.spec import OverlaySpec, spec_digest
from envspec.spec_toml import parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from envspec.lock import Lock
    from envspec.spec import Spec

DATA = Path(__file__).resolve().parents[1] / "data" / "review"
HOSTS = """
[hosts.gpu-a]
compute = "8.0"
gpus = 4
driver = "570.86.10"

[hosts.gpu-b]
compute = "9.0"
gpus = 8
driver = "580.95.05"

[hosts.gpu-c]
compute = "9.0"
gpus = 8
"""


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def real_side(version: str, *, label: str, more: str = "") -> Side:
    """One of the two real locks.

    Args:
        version: Of torch.
        label: Of the side.
        more: Text at the end of its spec; no lock depends on hosts.
    """
    name = f"torch-{version}"
    lock = parse_lock((DATA / f"{name}.lock").read_text(encoding="utf-8"), input_name=f"{name}.lock")
    text = (DATA / f"{name}.toml").read_text(encoding="utf-8") + more
    return Side(label=label, lock=lock, spec=parse_spec(text, input_name=f"{name}.toml"))


def torch_sides(more: str = HOSTS) -> tuple[Side, Side]:
    return real_side("2.10.0", label="HEAD (1a2b3c4d5e)", more=more), real_side(
        "2.13.0", label="the working tree", more=more
    )


def altered(
    side: Side,
    *,
    packages: Mapping[str, Mapping[str, Any] | None] | None = None,
    spec: Callable[[Spec], Spec] | None = None,
    label: str = "the working tree",
    **fields: Any,
) -> Side:
    """A side in which something is otherwise, as a lock that `envspec lock` could have written.

    Args:
        side: What it is made of.
        packages: Name -> fields with other values; None to take the package away; a new name needs all that a package has.
        spec: Makes the other spec; by default it stays.
        label: Of the new side.
        fields: Of the lock.
    """
    assert side.lock is not None
    assert side.spec is not None
    found = {package.name: package for package in side.lock.packages}
    for name, changes in (packages or {}).items():
        if changes is None:
            del found[name]
        elif name in found:
            found[name] = replace(found[name], **changes)
        else:
            found[name] = make_package(name, **changes)
    wanted = spec(side.spec) if spec else side.spec
    locked = tuple(package for _, package in sorted(found.items()))
    lock = replace(side.lock, packages=locked, spec_sha256=spec_digest(wanted), **fields)
    if lock.packages != side.lock.packages or lock.overlays != side.lock.overlays:
        lock = replace(lock, site=digest_of(repr((lock.packages, lock.overlays))))
    return Side(label=label, lock=coherent(lock), spec=wanted)


def coherent(lock: Lock) -> Lock:
    """The lock with its env id, read back from its text: it is one that a file can hold."""
    whole = replace(lock, env=compute_env_id(lock))
    return parse_lock(dump_lock(whole), input_name="made.lock")


def make_package(name: str, *, version: str, requires: tuple[str, ...] = (), **more: Any) -> LockedPackage:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    fields: dict[str, Any] = {"index": "default", "file": file, "size": 51_200, "sha256": digest_of(file)}
    fields["tree"] = digest_of(f"tree of {file}")
    return LockedPackage(name=name, version=version, requires=requires, **{**fields, **more})


def moved(name: str, version: str) -> dict[str, Any]:
    """The fields of a package at another version, for a wheel of Python alone."""
    package = make_package(name, version=version)
    return {"version": version, "file": package.file, "sha256": package.sha256, "tree": package.tree}


def contents(files: Mapping[str, str], *, scripts: tuple[str, ...] = (), python: str = "3.12") -> WheelContents:
    """What is in a wheel.

    Args:
        files: Path below site-packages -> content.
        scripts: Names in `bin/`.
        python: Minor version.
    """
    site = f"lib/python{python}/site-packages/"
    found = {f"{site}{path}": (digest_of(text), len(text)) for path, text in files.items()}
    found |= {f"bin/{name}": (digest_of(name), 200) for name in scripts}
    return WheelContents(files=found, scripts=scripts)


def patched(
    side: Side, package: str, patches: Mapping[str, bytes], files: Mapping[str, tuple[bytes | None, bytes | None]]
) -> Side:
    """A side with an overlay.

    Args:
        side: Without it.
        package: That is patched.
        patches: Name -> content, in the order of the series.
        files: Path -> content before and after.
    """
    base = side.packages[package]
    version = f"{base.version}+fixes.{digest_of(repr(sorted(patches.items())))[:8]}"
    tags = base.file.removesuffix(".whl").split("-")[-3:]
    overlay = LockedOverlay(
        package=package,
        series="overlays/fixes/series",
        base_sha256=base.sha256,
        patches=tuple(
            LockedPatch(name=name, sha256=hashlib.sha256(content).hexdigest()) for name, content in patches.items()
        ),
        files=tuple(
            PatchedFile(path=path, before=_sha256(before), after=_sha256(after))
            for path, (before, after) in sorted(files.items())
        ),
        version=version,
        file="-".join([package.replace("-", "_"), version, *tags]) + ".whl",
        size=base.size + 300,
        sha256=digest_of(version),
        tree=digest_of(f"tree of {version}"),
    )
    made = altered(
        side,
        label=side.label,
        spec=lambda spec: replace(spec, overlays=(OverlaySpec(package=package, series=overlay.series),)),
        overlays=(overlay,),
    )
    return replace(
        made,
        patches={(package, name): content for name, content in patches.items()},
        members={(package, path): after for path, (_, after) in files.items()},
    )


def _sha256(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()
