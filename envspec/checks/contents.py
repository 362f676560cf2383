"""What a wheel brings along beside its package: names that belong to nobody, bytecode, files outside of site-packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.checks.anomalies import Wording, findings_of_kind, findings_of_wheel
from envspec.checks.ownership import is_reserved
from envspec.checks.registry import check
from envspec.generic_names import GENERIC_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.checks.closure import Closure
    from envspec.facts import Finding

ENVIRONMENT_FOLDERS = frozenset({"bin", "etc", "include", "lib", "libexec", "man", "sbin", "share", "var"})
"""Folders of an environment in which a file is no surprise."""


@check("generic-top-level")
def generic_top_level(closure: Closure) -> Iterable[Finding]:
    """Every package keeps to names of its own at the root of site-packages.

    Severity: info.

    Why: `lib`, `include`, `test`, `tools` or `build_backend.py` are there by a mistake in the build of the wheel. The next
    package that makes the same mistake collides with it, and `import test` finds another module than Python's.

    Example:
        info: torchao 0.9.0 has 1 name at the root of site-packages that anyone could use: `test`

    How to mend: nothing here; report it to the package.
    """
    wording = Wording(
        check="generic-top-level",
        severity="info",
        one="name at the root of site-packages that anyone could use",
        many="names at the root of site-packages that anyone could use",
        hint="",
    )
    for wheel in closure.wheels:
        site, own = wheel.site_packages, wheel.facts.name.replace("-", "_")
        counts: dict[str, int] = {}
        for file in wheel.facts.files:
            if file.path.startswith(site):
                top = file.path[len(site) :].split("/", 1)[0]
                counts[top] = counts.get(top, 0) + 1
        details = {
            top: "1 file" if count == 1 else f"{count} files"
            for top, count in counts.items()
            if top.lower() in GENERIC_NAMES and top.lower() not in (own, f"{own}.py")
        }
        yield from findings_of_wheel(closure, wheel, details, wording)


@check("shipped-bytecode")
def shipped_bytecode(closure: Closure) -> Iterable[Finding]:
    """Wheels bring sources, not bytecode.

    Severity: info.

    Why: bytecode in `__pycache__` holds the time of a source or the path of a build, and is stale as soon as an overlay
    changes the source. It is left out and compiled anew, once for each wheel and interpreter.

    Example:
        info: cached 1.0 has 2 files of bytecode, which are left out: `cached/__pycache__/a.cpython-312.pyc` and 1 more

    How to mend: nothing.
    """
    wording = Wording(
        check="shipped-bytecode",
        severity="info",
        one="file of bytecode, which is left out",
        many="files of bytecode, which are left out",
        hint="",
    )
    return findings_of_kind(closure, "shipped-bytecode", wording)


@check("data-outside")
def data_outside(closure: Closure) -> Iterable[Finding]:
    """Files outside of site-packages lie where an environment keeps such files.

    Severity: info.

    Why: `.data/data` may write anywhere in an environment. `share/man` is what it is for; `external/ffmpeg/src` is worth a
    look.

    Example:
        info: pynvvideocodec 2.0.4 has 1 file in a folder of its own in the environment: `external/ffmpeg/src/ffmpeg.tar.xz`

    How to mend: nothing; the lock lists the file like any other.
    """
    wording = Wording(
        check="data-outside",
        severity="info",
        one="file in a folder of its own in the environment",
        many="files in a folder of their own in the environment",
        hint="",
    )
    for wheel in closure.wheels:
        details = {
            file.path: f"{file.size} bytes"
            for file in wheel.facts.files
            if not file.path.startswith(wheel.site_packages)
            and ("/" not in file.path or file.path.split("/", 1)[0] not in ENVIRONMENT_FOLDERS)
            and not is_reserved(file.path)
        }
        yield from findings_of_wheel(closure, wheel, details, wording)
