"""What mends a cause, checked before it is offered.

A version is offered only if an index was asked and the requirements of the venv hold with it; else the fix says what is wanted, and that no
version was looked up.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from envspec.diagnosis import package_fixes as packages
from envspec.diagnosis import release_fixes as releases
from envspec.diagnosis.installed import parsed_version
from envspec.diagnosis.offers import Index, fitting, install_command, public, python_of
from envspec.diagnosis.values import Fix
from envspec.wording import joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from envspec.diagnosis.grouping import Group
    from envspec.diagnosis.scene import Scene

DEBIAN = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libSM.so.6": "libsm6",
    "libX11.so.6": "libx11-6",
    "libXext.so.6": "libxext6",
    "libXrender.so.1": "libxrender1",
    "libatomic.so.1": "libatomic1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgomp.so.1": "libgomp1",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libibverbs.so.1": "libibverbs1",
    "libmlx5.so.1": "ibverbs-providers",
    "libmpi.so.40": "libopenmpi3",
    "libnuma.so.1": "libnuma1",
    "libomp.so.5": "libomp5",
    "libopenblas.so.0": "libopenblas0",
    "librdmacm.so.1": "librdmacm1",
    "libsndfile.so.1": "libsndfile1",
    "libsox.so.3": "libsox3",
    "libstdc++.so.6": "libstdc++6",
    "libtbb.so.12": "libtbb12",
    "libxcb.so.1": "libxcb1",
    "libz.so.1": "zlib1g",
}

REPAIR = "envspec build --repair"


def fix_of(group: Group, scene: Scene, index: Index) -> Fix | None:
    """What mends a cause; None if nothing is known."""
    root = group.root
    if scene.is_locked and root.check in _BY_REBUILDING:
        env = scene.observation.locked.get("name", "")
        return Fix(
            text=f"make the environment{f' {env}' if env else ''} anew from its lock",
            command=REPAIR,
            proven_by="the lock names every file of it",
        )
    maker = _MAKERS.get(root.check)
    made = maker(group, scene, index) if maker is not None else None
    if made is not None:
        return made
    return Fix(text=root.finding.hint) if root.finding.hint else None


def _host_library(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    sonames = sorted(group.root.sonames)
    known = sorted({DEBIAN[soname] for soname in sonames if soname in DEBIAN})
    if not known:
        return Fix(text=f"install what brings {joined([f'`{each}`' for each in sonames[:3]])} on this machine")
    return Fix(
        text=f"install {joined(known)} on this machine (Debian and Ubuntu)",
        command=f"apt-get install {' '.join(known)}",
    )


def _other_build(group: Group, scene: Scene, index: Index) -> Fix | None:
    spec = scene.closure.spec
    name = group.root.package
    version = public(scene.true_version(name))
    if group.root.check in _OF_ANOTHER_MACHINE and parsed_version(version) is not None:
        offer = index.best(name, [f"{name}=={version}"])
        if offer is not None:
            return Fix(
                text=f"install {name} {offer.version} anew, from its wheel for this Python and machine",
                command=install_command(scene, [f"{name}=={offer.version}"], "--reinstall", "--no-deps"),
                proven_by="the index has one that this interpreter installs",
            )
    what = {
        "glibc-too-old": f"for glibc {spec.target.glibc} or older, or move to a newer system",
        "libstdcxx-too-old": "for an older libstdc++, or install a newer one on this machine (`libstdc++6`)",
        "gpu-code-missing": f"that has code for compute capability {joined(spec.cuda.compute if spec.cuda else ())}",
        "dead-extension": f"for Python {spec.python.version}",
        "requires-python": f"for Python {spec.python.exact or spec.python.version}, or make the venv with a Python that it accepts",
        "tag-mismatch": f"for Python {spec.python.version} on {spec.target.platform}",
        "undefined-symbol": f"for Python {spec.python.version} and the libraries that are there",
        "executable-stack": "that asks for no executable stack",
        "no-fitting-variant": "with a variant for this machine, or install the libraries that one of its variants needs",
    }[group.root.check]
    return Fix(text=f"use a release of {group.root.package} {what}")


_OF_ANOTHER_MACHINE = frozenset({"dead-extension", "tag-mismatch"})
"""Where the right wheel of the same version may do."""


def _never_right(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    return Fix(
        text=f"nothing breaks by it; use a build of {group.root.package} whose RECORD is right, so that edits can be told"
    )


def _look(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    if group.root.finding.message.endswith(": SIGILL"):
        return Fix(
            text=f"use a build of {group.root.package or 'the package'} for older processors: its code has instructions that this one lacks"
        )
    place = group.root.finding.evidence[0] if group.root.finding.evidence else group.root.finding.path
    return Fix(text=f"look at {place}: no file, version or requirement of the venv explains it") if place else None


def _reserved(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    return Fix(
        text=f"make the venv anew without {group.root.package}, whose wheel writes over what belongs to the venv"
    )


def _unset(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    if group.root.check == "cuda-home" and group.root.finding.hint:
        return Fix(text=group.root.finding.hint)
    found = re.match(r"([A-Z_]{4,}) ", group.root.finding.message)
    setting = next(
        (line.partition("=")[0] for line in group.root.finding.evidence if re.match(r"[A-Z_]{4,}=", line)), ""
    )
    variable = found[1] if found else setting
    if not variable:
        return Fix(text="see which variable or file puts the other folder first, and take it out")
    return Fix(text=f"unset {variable} for this process", command=f"env -u {variable} {python_of(scene)} ...")


def _interpreter(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    if scene.is_locked:
        return Fix(text="make the environment anew from its lock, with a Python that is there", command=REPAIR)
    minor = scene.observation.python.minor
    return Fix(
        text=f"put Python {minor} back where it was, or make the venv anew with one that is there: `envspec adopt` writes down what is in it"
    )


def _driver(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    return Fix(text="start the container with the GPUs (`--gpus all`), or install NVIDIA's driver on this machine")


def _not_started(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    if group.root.finding.severity != "error":
        return None
    return Fix(
        text=f"make the venv anew with a Python {scene.observation.python.minor} that starts, and install the same packages (`envspec adopt` "
        "writes them down)"
    )


def _moved(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    if scene.is_locked:
        return Fix(text="make the environment anew from its lock", command=REPAIR)
    return Fix(
        text="make the venv anew at this place and install the same packages (`envspec adopt` writes them down), or move it back; "
        "until then start programs as `bin/python -m NAME`"
    )


def _checkout(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    place = re.search(r"is installed from `([^`]+)`", group.root.finding.message)
    folder = f"`{place[1]}` back" if place else f"the folder back that {group.root.finding.path} names"
    return Fix(
        text=f"put {folder}, or install {group.root.package or 'the package'} anew from where its checkout is now"
    )


def _compile_again(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    folders = [
        f"{scene.observation.prefix}/{scene.site}/{name}" for name in scene.modules_of_project(group.root.package)
    ]
    return Fix(
        text=f"delete the `__pycache__` folders below {joined(folders[:2]) or scene.site}; Python writes them anew"
    )


def _of_numpy(group: Group, scene: Scene, index: Index) -> Fix | None:
    """A build for this numpy; the numpy for which it was built, if there is none."""
    name = group.root.package
    if name in ("", "numpy"):
        return Fix(text="use releases that are built for this numpy, or numpy before 2")
    numpy = scene.true_version("numpy")
    offer = fitting(index, name, [name, f"numpy=={public(numpy)}"], scene) if numpy else None
    if offer is None or public(offer.version) == public(scene.true_version(name)):
        return Fix(
            text=f"use a release of {name} that is built for numpy {numpy}, or an older numpy".replace("  ", " ")
        )
    return Fix(
        text=f"use {name} {offer.version}, the newest for numpy {numpy}, or an older numpy",
        command=install_command(scene, [f"{name}=={offer.version}"]),
        proven_by=offer.proof,
    )


def _readable(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    folder = shlex.quote(f"{scene.observation.prefix.rstrip('/')}/{scene.site}")
    return Fix(
        text="let this user read the packages: whoever owns the files has to do it", command=f"chmod -R a+rX {folder}"
    )


def _remove(group: Group, scene: Scene, index: Index) -> Fix | None:  # noqa: ARG001 - as the others
    path = group.root.finding.path
    if path.endswith("/__init__.py"):
        what = path if "namespace" in group.root.finding.message else path.removesuffix("__init__.py")
        return Fix(text=f"move `{what}` out of the venv: no package that is installed brings it")
    return Fix(text=f"find out where `{path}` comes from; if nobody wants it, remove it")


def _rename(group: Group, scene: Scene, index: Index) -> Fix | None:
    if group.root.finding.message.startswith("PYTHONPATH"):
        return _unset(group, scene, index)
    if group.root.finding.path.endswith(".pth"):
        return Fix(
            text=f"take the line out of `{group.root.finding.path}` that puts the other folder first, or remove the file"
        )
    return Fix(text=f"rename `{group.root.finding.path}`, or take its folder out of sys.path")


_BY_REBUILDING = frozenset(
    {
        *(
            "cuda-major-mismatch",
            "dual-cuda-runtime",
            "torch-abi-mismatch",
            "requires-dist",
            "lost-package",
            "missing-file",
            "drift",
        ),
        *(
            "version-inside",
            "two-versions",
            "owned-twice",
            "not-a-library",
            "foreign-machine",
            "damaged-binary",
            "record-hash",
        ),
        *(
            "missing-library",
            "undefined-symbol",
            "lock-step",
            "metadata-version",
            "stray-code",
            "stray-module",
            "poisoned-file",
        ),
        *("leftover", "cpu-build", "cut-off-file", "unreadable-file"),
        *("edited-file", "reserved-path", "module-missing", "interpreter-problem"),
    }
)

_MAKERS: dict[str, Callable[[Group, Scene, Index], Fix | None]] = {
    "cuda-major-mismatch": packages.partner,
    "damaged-binary": packages.again,
    "dead-extension": _other_build,
    "dual-cuda-runtime": packages.partner,
    "edited-file": packages.edited,
    "foreign-machine": packages.as_shipped,
    "host-library": _host_library,
    "interpreter-gone": _interpreter,
    "interpreter-minor": _interpreter,
    "interpreter-problem": _not_started,
    "executable-stack": _other_build,
    "glibc-too-old": _other_build,
    "gpu-code-missing": _other_build,
    "library-path": _unset,
    "libstdcxx-too-old": _other_build,
    "lock-step": packages.lock_step,
    "missing-library": packages.linked,
    "no-fitting-variant": _other_build,
    "requires-python": _other_build,
    "reserved-path": _reserved,
    "run-failed": _look,
    "tag-mismatch": _other_build,
    "undefined-symbol": _other_build,
    "binary-interface": _of_numpy,
    "cpu-build": releases.other_build,
    "cut-off-file": packages.again,
    "devices-hidden": _unset,
    "driver-absent": _driver,
    "generated-code": releases.generated_code,
    "leftover": releases.interrupted,
    "name-missing": releases.name_missing,
    "outside-package": releases.into_the_venv,
    "unreadable-file": _readable,
    "assembler-path": _unset,
    "cuda-home": _unset,
    "python-home": _unset,
    "lost-package": packages.again,
    "metadata-version": packages.again,
    "missing-file": packages.again,
    "module-missing": releases.dropped_module,
    "bad-bytecode": _compile_again,
    "moved-venv": _moved,
    "path-gone": _checkout,
    "not-a-library": packages.as_shipped,
    "owned-twice": packages.one_of_two,
    "poisoned-file": packages.edited,
    "record-hash": _never_right,
    "requires-dist": packages.requirement,
    "shadowed-module": _rename,
    "startup-hook": _remove,
    "stray-code": _remove,
    "stray-module": packages.copied,
    "torch-abi-mismatch": packages.partner,
    "two-versions": packages.two_versions,
    "version-inside": packages.mixed,
}
