"""A lock -> a bill of materials in CycloneDX 1.6, JSON.

It has no time and no random number: its serial number comes from the env id, so that the same environment gives the same bytes.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from envspec.lock import parts

if TYPE_CHECKING:
    from envspec.lock import Lock, LockedOverlay, LockedPackage, Part

SPEC_VERSION = "1.6"
_NAMESPACE = uuid.UUID("5f0c6a0e-6f43-5d0c-9f3b-2a6f4b1d7c55")
"""Of serial numbers; any number will do that never changes."""


def cyclonedx_text(lock: Lock, *, roots: frozenset[str], envspec_version: str) -> str:
    """The bill of materials of a lock.

    Args:
        lock: The lock.
        roots: Names of the packages that the spec asks for.
        envspec_version: Of the program that writes it.
    """
    overlays = {overlay.package: overlay for overlay in lock.overlays}
    packages = {package.name: package for package in lock.packages}
    components = [_component(part, packages[part.package], overlays.get(part.package)) for part in parts(lock)]
    refs = {part.package: component["bom-ref"] for part, component in zip(parts(lock), components, strict=True)}
    root = f"environment:{lock.env}"
    dependencies = [
        {"ref": root, "dependsOn": sorted(ref for name, ref in refs.items() if name in roots)},
        *(
            {"ref": refs[package.name], "dependsOn": sorted(refs[name] for name in package.requires)}
            for package in lock.packages
        ),
    ]
    record = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, lock.env)}",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "envspec", "version": envspec_version}]},
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": lock.name,
                "version": lock.env,
                "properties": _properties(
                    site=lock.site,
                    python=lock.python_exact or lock.python,
                    platform=lock.platform,
                    glibc=lock.glibc,
                    cuda=lock.cuda_toolkit,
                    compute=" ".join(lock.cuda_compute),
                    driver=lock.needs.driver,
                    snapshot=lock.snapshot,
                ),
            },
        },
        "components": components,
        "dependencies": dependencies,
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def _component(part: Part, package: LockedPackage, overlay: LockedOverlay | None) -> dict[str, Any]:
    version = overlay.version if overlay else package.version
    purl = _purl(part.package, version, part.file)
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": part.package,
        "version": version,
        "scope": "required",
        "hashes": [{"alg": "SHA-256", "content": part.sha256}],
        "purl": purl,
    }
    if overlay is not None:
        folder = overlay.series.rpartition("/")[0]
        found["pedigree"] = {
            "ancestors": [
                {
                    "type": "library",
                    "name": package.name,
                    "version": package.version,
                    "hashes": [{"alg": "SHA-256", "content": package.sha256}],
                    "purl": _purl(package.name, package.version, package.file),
                }
            ],
            "patches": [
                {"type": "unofficial", "diff": {"url": quote(f"{folder}/{patch.name}" if folder else patch.name)}}
                for patch in overlay.patches
            ],
            "notes": f"{len(overlay.patches)} patches of {overlay.series} change {len(overlay.files)} files of the wheel",
        }
    found["properties"] = _properties(
        file=part.file,
        size=str(part.size),
        tree=part.tree,
        index=package.index,
        cuda=package.cuda,
        gpu_code=" ".join(package.gpu_code),
        startup_hooks=" ".join(hook.path for hook in package.hooks),
    )
    if overlay is not None:
        found["properties"] += [
            {"name": f"envspec:patch:{patch.name}", "value": f"sha256:{patch.sha256}"} for patch in overlay.patches
        ]
    return found


def _properties(**values: str) -> list[dict[str, str]]:
    return [{"name": f"envspec:{name}", "value": value} for name, value in sorted(values.items()) if value]


def _purl(name: str, version: str, file: str) -> str:
    """A package URL; the name of the file tells apart two wheels of one version."""
    return f"pkg:pypi/{quote(name, safe='')}@{quote(version, safe='')}?file_name={quote(file, safe='')}"
