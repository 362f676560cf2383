r"""`Lock` <-> the text of a lock. `docs/lock-format.md` is the reference of the format.

The writer is small and of one mind: fixed order of keys, nothing that is empty, one table a package, so that equal locks are equal bytes and a
review shows what changed. The reader takes exactly what the writer writes: a text that says the same in other bytes, has an unknown field, or
does not add up (file names, digests, the env id) is refused, with every problem at once.

Invariants, for every text and lock:

1. `parse_lock(dump_lock(lock)) == lock`, if the lock is coherent (`parse_lock` says what that means).
2. `dump_lock(parse_lock(text)) == text`.
3. `parse_lock` raises nothing but `EnvspecError`, however hostile the text is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.errors import EnvspecError
from envspec.forms import (
    COMPUTE,
    CUDA_TOOLKIT,
    ENV_ID,
    GLIBC,
    NAME,
    PLATFORM,
    PYTHON_EXACT,
    PYTHON_MINOR,
    RELATIVE_PATH,
    SHA256,
    SONAME,
    WORD,
    Form,
    normalise_name,
    quoted,
)
from envspec.lock import (
    LOCK_FORMAT,
    Lock,
    LockedFinding,
    LockedHook,
    LockedNeeds,
    LockedOverlay,
    LockedPackage,
    LockedPatch,
    PatchedFile,
    compute_env_id,
)
from envspec.spec_toml import read_waivers
from envspec.toml_reading import kind_of, read_document
from envspec.toml_writing import key_lines, table_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.toml_reading import Document, Table

HEADER = "# Written by `envspec lock`; reviewed by people, edited by nobody.\n"
RELOCK = "run `envspec lock`, which writes it anew"

_NORMALISED_NAME = Form(r"[a-z0-9]+(?:-[a-z0-9]+)*", "the normalised name of a package")
_VERSION = Form(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", "a version")
_WHEEL = Form(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl", "the name of a wheel file")
_PATCH_NAME = Form(r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]+", "the name of a patch beside its series")
_OVERRIDE = Form(
    r"[a-z0-9]+(?:-[a-z0-9]+)*(?:\[[a-z0-9,-]+\])?[^/@\x00-\x1f\x7f]*", "a requirement such as `numpy==2.3.5`"
)
_SNAPSHOT = Form(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{6})?Z",
    "a time in UTC such as `2026-05-20T00:00:00Z`",
)
_SYMBOL_VERSION = Form(r"[0-9]{1,4}(?:\.[0-9]{1,4}){1,3}", "a version of symbols such as `3.4.22`")
_DRIVER = Form(r"[1-9][0-9]{1,3}(?:\.[0-9]{1,3}){0,2}", "a version of the NVIDIA driver such as `580`")
_CUDA = Form(r"[1-9][0-9]?(?:\.[0-9]{1,2})?", "a CUDA version such as `13.0`")
_GPU_CODE = Form(r"(?:sm|compute)_[1-9][0-9]{1,2}[af]?|kind-[0-9]{1,5}", "GPU code such as `sm_90a`")
_SEVERITY = Form("error|warning|info", "`error`, `warning` or `info`")


def dump_lock(lock: Lock) -> str:
    """The text of a lock.

    Raises:
        EnvspecError: A string of the lock has a lone surrogate, which no TOML can hold.
    """
    lines = key_lines(
        ("lock", LOCK_FORMAT),
        ("spec", lock.spec_sha256),
        ("env", lock.env),
        ("site", lock.site),
        ("name", lock.name),
        ("snapshot", lock.snapshot),
        ("overrides", lock.overrides),
    )
    lines += table_lines("[python]", ("version", lock.python), ("exact", lock.python_exact))
    lines += table_lines("[target]", ("platform", lock.platform), ("glibc", lock.glibc), ("libraries", lock.libraries))
    if lock.cuda_toolkit:
        lines += table_lines("[cuda]", ("toolkit", lock.cuda_toolkit), ("compute", lock.cuda_compute))
    if lock.needs != LockedNeeds():
        lines += table_lines(
            "[needs]",
            ("glibc", lock.needs.glibc),
            ("libstdcxx", lock.needs.libstdcxx),
            ("cxxabi", lock.needs.cxxabi),
            ("libraries", lock.needs.libraries),
            ("driver", lock.needs.driver),
            ("driver_api", lock.needs.driver_api),
        )
    for package in lock.packages:
        lines += _package_lines(package)
    for overlay in lock.overlays:
        lines += _overlay_lines(overlay)
    for waiver in lock.waivers:
        lines += table_lines(
            "[[waiver]]",
            ("check", waiver.check),
            ("package", waiver.package),
            ("path", waiver.path),
            ("owner", waiver.owner),
            ("reason", waiver.reason),
        )
    for finding in lock.findings:
        lines += table_lines(
            "[[finding]]",
            ("check", finding.check),
            ("severity", finding.severity),
            ("subject", finding.subject),
            ("message", finding.message),
            ("waived", finding.waived),
        )
    text = HEADER + "\n".join(lines) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        line = text[text.rfind("\n", 0, exc.start) + 1 : exc.start]
        raise EnvspecError(
            f"a lock cannot hold the lone surrogate U+{ord(text[exc.start]):04X}, after {quoted(line)}"
        ) from None
    return text


def _package_lines(package: LockedPackage) -> list[str]:
    lines = table_lines(
        "[[package]]",
        ("name", package.name),
        ("version", package.version),
        ("index", package.index),
        ("file", package.file),
        ("size", package.size),
        ("sha256", package.sha256),
        ("tree", package.tree),
        ("requires_python", package.requires_python),
        ("cuda", package.cuda),
        ("gpu_code", package.gpu_code),
        ("requires", package.requires),
    )
    for hook in package.hooks:
        lines += table_lines("[[package.hook]]", ("path", hook.path), ("sha256", hook.sha256), ("code", hook.code))
    return lines


def _overlay_lines(overlay: LockedOverlay) -> list[str]:
    lines = table_lines(
        "[[overlay]]",
        ("package", overlay.package),
        ("series", overlay.series),
        ("base_sha256", overlay.base_sha256),
        ("version", overlay.version),
        ("file", overlay.file),
        ("size", overlay.size),
        ("sha256", overlay.sha256),
        ("tree", overlay.tree),
    )
    for patch in overlay.patches:
        lines += table_lines("[[overlay.patch]]", ("name", patch.name), ("sha256", patch.sha256))
    for file in overlay.files:
        lines += table_lines("[[overlay.change]]", ("path", file.path), ("before", file.before), ("after", file.after))
    return lines


def parse_lock(text: str, *, input_name: str) -> Lock:
    """The lock of a text that `dump_lock` wrote.

    Beside the form of each field, these hold: packages, overlays, requires, overrides and libraries are sorted, each once; a file name agrees
    with the name and version beside it; each overlay is on a locked package with the sha256 that it says; each required name is locked; the
    env id is that of the content; the text is the very one that `dump_lock` writes.

    Args:
        text: Of the file; may be hostile.
        input_name: For errors: `ddtree.lock`.

    Raises:
        EnvspecError: The text is not such a lock; `problems` has every reason.
    """
    document = read_document(
        text, input_name=input_name, kind="lock", conflict_hint="run `envspec lock`: a lock is not merged by hand"
    )
    root = document.root
    _read_format(root, input_name)
    python, target, cuda = root.table("python", required=True), root.table("target", required=True), root.table("cuda")
    needs = root.table("needs")
    package_tables, overlay_tables = root.tables("package"), root.tables("overlay")
    lock = Lock(
        spec_sha256=root.string("spec", SHA256),
        env=root.string("env", ENV_ID),
        site=root.string("site", SHA256),
        name=root.string("name", NAME),
        snapshot=_read_snapshot(root),
        overrides=_sorted_strings(root, "overrides", _OVERRIDE),
        python=python.string("version", PYTHON_MINOR),
        python_exact=python.string("exact", PYTHON_EXACT, default=""),
        platform=target.string("platform", PLATFORM),
        glibc=target.string("glibc", GLIBC),
        libraries=_sorted_strings(target, "libraries", SONAME),
        cuda_toolkit=cuda.string("toolkit", CUDA_TOOLKIT),
        cuda_compute=cuda.strings("compute", COMPUTE, required=True),
        needs=LockedNeeds(
            glibc=needs.string("glibc", _SYMBOL_VERSION, default=""),  # of symbols: `2.2.5` too
            libstdcxx=needs.string("libstdcxx", _SYMBOL_VERSION, default=""),
            cxxabi=needs.string("cxxabi", _SYMBOL_VERSION, default=""),
            libraries=_sorted_strings(needs, "libraries", SONAME),
            driver=needs.string("driver", _DRIVER, default=""),
            driver_api=needs.string("driver_api", CUDA_TOOLKIT, default=""),
        ),
        packages=tuple(_read_package(table) for table in package_tables),
        overlays=tuple(_read_overlay(table) for table in overlay_tables),
        waivers=read_waivers(root.tables("waiver")),
        findings=tuple(_read_finding(table) for table in root.tables("finding")),
    )
    if lock.python_exact and not lock.python_exact.startswith(f"{lock.python}."):
        python.note("exact", f"`{lock.python_exact}` is not a Python {lock.python}")
    for table in (python, target, cuda, needs, root):
        table.close()
    _note_order(package_tables, "name", [package.name for package in lock.packages])
    _note_order(overlay_tables, "package", [overlay.package for overlay in lock.overlays])
    _check_requires(package_tables, lock)
    _check_overlays(overlay_tables, lock)
    if document.is_sound:
        env = compute_env_id(lock)
        if env != lock.env:
            root.note(
                "env",
                f"the env id in the lock is `{lock.env}`, its content gives `{env}`",
                "an env id covers `python.version`, `target.platform`, `name` and `sha256` of each package and overlay, "
                "`path` and `owner` of waivers",
            )
    if document.is_sound:
        _check_text(document, lock)
    document.raise_problems(hint=RELOCK)
    return lock


def _read_format(root: Table, input_name: str) -> None:
    """Raise at once on another format, since whatever else is said of it would be noise."""
    value = root.get("lock")
    if value is None:
        root.note("lock", f"is missing: a lock begins with `lock = {LOCK_FORMAT}`")
    elif isinstance(value, bool) or not isinstance(value, int):
        root.note("lock", f"expected the integer {LOCK_FORMAT}, got {kind_of(value)}")
    elif value != LOCK_FORMAT:
        raise EnvspecError(
            f"the lock has format {root.integer('lock')}, this envspec supports {LOCK_FORMAT}",
            input_name=input_name,
            hint="use the envspec that wrote it, or run `envspec lock` to write it anew",
        )


def _read_snapshot(root: Table) -> str:
    from datetime import datetime  # noqa: PLC0415 - only for locks with a snapshot

    snapshot = root.string("snapshot", _SNAPSHOT, default="")
    if snapshot:
        try:
            datetime.fromisoformat(snapshot.replace("Z", "+00:00"))
        except ValueError:
            root.note("snapshot", f"there is no such time: {quoted(snapshot)}")
    return snapshot


def _sorted_strings(table: Table, key: str, form: Form) -> tuple[str, ...]:
    values = table.strings(key, form)
    if list(values) != sorted(values):
        table.note(key, "is not sorted")
    return values


def _note_order(tables: Sequence[Table], key: str, values: Sequence[str]) -> None:
    """Note each value that is not above the one before it; values that a getter has found wrong are empty."""
    before = ""
    for table, value in zip(tables, values, strict=True):
        if value and value == before:
            table.note(key, f"`{value}` is listed twice")
        elif value and value < before:
            table.note(key, f"{quoted(value)} comes after {quoted(before)}, but they are sorted")
        before = value or before


def _read_package(table: Table) -> LockedPackage:
    package = LockedPackage(
        name=table.string("name", _NORMALISED_NAME),
        version=table.string("version", _VERSION),
        index=table.string("index", NAME),
        file=table.string("file", _WHEEL),
        size=table.integer("size"),
        sha256=table.string("sha256", SHA256),
        tree=table.string("tree", SHA256),
        requires_python=table.string("requires_python", default=""),
        cuda=table.string("cuda", _CUDA, default=""),
        gpu_code=table.strings("gpu_code", _GPU_CODE),
        requires=_sorted_strings(table, "requires", _NORMALISED_NAME),
        hooks=tuple(_read_hook(hook) for hook in table.tables("hook")),
    )
    _check_file(table, package.name, package.version, package.file)
    table.close()
    return package


def _read_hook(table: Table) -> LockedHook:
    hook = LockedHook(
        path=table.string("path", RELATIVE_PATH),
        sha256=table.string("sha256", SHA256),
        code=table.strings("code", unique=False),
    )
    table.close()
    return hook


def _read_overlay(table: Table) -> LockedOverlay:
    patches, files = table.tables("patch"), table.tables("change")
    overlay = LockedOverlay(
        package=table.string("package", _NORMALISED_NAME),
        series=table.string("series", RELATIVE_PATH),
        base_sha256=table.string("base_sha256", SHA256),
        version=table.string("version", _VERSION),
        file=table.string("file", _WHEEL),
        size=table.integer("size"),
        sha256=table.string("sha256", SHA256),
        tree=table.string("tree", SHA256),
        patches=tuple(_read_patch(patch) for patch in patches),
        files=tuple(_read_patched_file(file) for file in files),
    )
    _note_order(files, "path", [file.path for file in overlay.files])
    _check_file(table, overlay.package, overlay.version, overlay.file)
    table.close()
    return overlay


def _read_patch(table: Table) -> LockedPatch:
    patch = LockedPatch(name=table.string("name", _PATCH_NAME), sha256=table.string("sha256", SHA256))
    table.close()
    return patch


def _read_patched_file(table: Table) -> PatchedFile:
    file = PatchedFile(
        path=table.string("path", RELATIVE_PATH),
        before=table.string("before", SHA256, default=""),
        after=table.string("after", SHA256, default=""),
    )
    if "before" not in table and "after" not in table:
        table.note(None, "has neither `before` nor `after`")
    table.close()
    return file


def _read_finding(table: Table) -> LockedFinding:
    finding = LockedFinding(
        check=table.string("check", WORD),
        severity=table.string("severity", _SEVERITY),
        subject=table.string("subject", default=""),
        message=table.string("message", default=""),
        waived=table.string("waived", default=""),
    )
    table.close()
    return finding


def _check_file(table: Table, name: str, version: str, file: str) -> None:
    """Note a wheel file whose name does not agree with the package; fields that a getter has found wrong are empty."""
    if not (name and version and file):
        return
    parts = file.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6):  # name, version, perhaps a build tag, python, abi, platform
        table.note("file", f"{quoted(file)} is not the name of a wheel file: it has {len(parts)} parts, not 5 or 6")
    elif normalise_name(parts[0]) != name:
        table.note("file", f"{quoted(file)} is a wheel of {quoted(parts[0])}, not of `{name}` (`name`)")
    elif not _is_same_version(parts[1], version):
        table.note("file", f"{quoted(file)} has version {quoted(parts[1])}, not {quoted(version)}")


def _is_same_version(in_file: str, version: str) -> bool:
    """Whether the version in a file name is that of METADATA; some real wheels have a local part in their file name only."""
    if in_file == version:
        return True
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415 - slow to import, seldom needed

    try:
        file_version, metadata_version = Version(in_file.replace("_", "-")), Version(version)
    except InvalidVersion:
        return False
    if metadata_version.local is None:
        return Version(file_version.public) == metadata_version
    return file_version == metadata_version


def _check_overlays(tables: Sequence[Table], lock: Lock) -> None:
    packages = {package.name: package for package in lock.packages}
    for table, overlay in zip(tables, lock.overlays, strict=True):
        if not overlay.package:
            continue
        package = packages.get(overlay.package)
        if package is None:
            table.note("package", f"`{overlay.package}` is not a locked package")
        elif overlay.base_sha256 and package.sha256 and overlay.base_sha256 != package.sha256:
            table.note(
                "base_sha256",
                f"the overlay is on a wheel with sha256 `{overlay.base_sha256}`, locked is `{package.sha256}`",
            )


def _check_requires(tables: Sequence[Table], lock: Lock) -> None:
    names = {package.name for package in lock.packages}
    for table, package in zip(tables, lock.packages, strict=True):
        if not names.issuperset(package.requires):
            missing = ", ".join(f"`{name}`" for name in package.requires if name not in names)
            table.note("requires", f"not locked: {missing}")


def _check_text(document: Document, lock: Lock) -> None:
    """Note the first line that is not what `dump_lock` writes: what people review has to be all that there is."""
    written = dump_lock(lock)
    if written == document.text:
        return
    found, expected = document.text.split("\n"), written.split("\n")
    for number, (line, expected_line) in enumerate(zip(found, expected, strict=False), start=1):
        if line != expected_line:
            document.note_line(number, f"expected {quoted(expected_line)}, got {quoted(line)}")
            return
    document.note_line(min(len(found), len(expected)), "the lock ends too early or too late")
