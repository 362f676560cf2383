"""Small shared objects for tests, made by gcc, that say of themselves whatever a test wants.

    content = shared_object(
        "_C.so",
        needed=["libcudart.so.13", "libc.so.6"],
        undefined=["cudaMalloc", "memcpy@GLIBC_2.14@libc.so.6"],
        exports=["PyInit__C"],
        runpath="$ORIGIN/lib",
        fatbins=[fatbin("sm_90a", "compute_120")],
    )

The result is a real file for `ld.so`, without libc unless `needed` has it, and the same bytes every time. Each is made once in a process: some
50 ms, and 30 ms more for each library that it needs.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder import process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GCC = shutil.which("gcc")
needs_gcc = pytest.mark.skipif(GCC is None, reason="gcc is not installed")

_MACHINE_OFFSET = 18


def shared_object(
    name: str = "libdemo.so",
    *,
    soname: str = "",
    needed: Sequence[str] = (),
    rpath: str = "",
    runpath: str = "",
    exports: Sequence[str] = (),
    hidden: Sequence[str] = (),
    undefined: Sequence[str] = (),
    weak: Sequence[str] = (),
    modules: Sequence[str] = (),
    fatbins: Sequence[bytes] = (),
    sections: Mapping[str, bytes] | None = None,
    machine: int | None = None,
    program: bool = False,
    executable_stack: bool = False,
    options: Sequence[str] = (),
) -> bytes:
    """The content of a shared object.

    Args:
        name: Of the file while it is made; nothing of it remains in the file.
        soname: DT_SONAME; none if empty.
        needed: DT_NEEDED, in this order; the libraries do not have to exist.
        rpath: DT_RPATH; none if empty. Not together with `runpath`.
        runpath: DT_RUNPATH; none if empty.
        exports: Functions that others may bind to: `name`, or `name@VERSION`.
        hidden: Functions that nobody else sees.
        undefined: Functions that others have to offer: `name`, or `name@VERSION@libneeded.so.1` with a library of `needed`.
        weak: The same, but they may stay without a definition.
        modules: Names of extension modules: `_C` exports `PyInit__C`.
        fatbins: What the section `.nv_fatbin` has, in this order.
        sections: Further sections that are loaded: name -> content.
        machine: `e_machine`, in place of this machine's.
        program: Whether it names an interpreter, as a position-independent program does.
        executable_stack: Whether it asks for an executable stack.
        options: Further options for gcc.
    """
    loaded = dict(sections or {})
    if fatbins:
        loaded[".nv_fatbin"] = b"".join(each.ljust(-len(each) // 8 * -8, b"\0") for each in fatbins)
    offered: dict[str, list[str]] = {library: [] for library in needed}
    for symbol in (*undefined, *weak):
        plain, _, library = symbol.rpartition("@")
        if plain:
            offered[library].append(plain)
    flags = [f"-Wl,-soname,{soname}"] if soname else []
    if rpath or runpath:
        assert not (rpath and runpath), "the linker writes one of them"
        flags += [f"-Wl,{'--disable' if rpath else '--enable'}-new-dtags", f"-Wl,-rpath,{rpath or runpath}"]
    if program:
        flags += ["-pie", "-Wl,--dynamic-linker=/lib64/ld-linux-x86-64.so.2", "-Wl,-e,0"]
    else:
        flags += ["-shared"]
    flags += [f"-Wl,-z,{'' if executable_stack else 'no'}execstack", *options]
    content = _linked(
        name,
        _source(
            exports=(*exports, *(f"PyInit_{module}" for module in modules)),
            hidden=hidden,
            undefined=undefined,
            weak=weak,
        ),
        _version_script(exports),
        tuple((library, tuple(symbols)) for library, symbols in offered.items()),
        tuple(loaded.items()),
        tuple(flags),
    )
    if machine is None:
        return content
    return content[:_MACHINE_OFFSET] + machine.to_bytes(2, "little") + content[_MACHINE_OFFSET + 2 :]


def _source(*, exports: Sequence[str], hidden: Sequence[str], undefined: Sequence[str], weak: Sequence[str]) -> str:
    """C with one function for each name; the names are those of the assembler, so that any may be used."""
    lines: list[str] = []
    wanted: list[str] = []
    for attribute, symbols in (("", undefined), ("__attribute__((weak))", weak)):
        for symbol in symbols:
            wanted.append(f"wanted_{len(wanted)}")
            lines.append(f'extern void {attribute} {wanted[-1]}(void) __asm__("{_plain(symbol)}");')
    for attribute, symbols in (("", exports), ('__attribute__((visibility("hidden")))', hidden)):
        for number, symbol in enumerate(symbols):
            given = f"{'hidden' if attribute else 'offered'}_{number}"
            lines.append(f'void {attribute} {given}(void) __asm__("{_plain(symbol)}");')
            lines.append(f"void {given}(void) {{}}")
    if wanted:
        lines.append(f"static void (*const uses[])(void) __attribute__((used)) = {{{', '.join(wanted)}}};")
    return "\n".join(lines) + "\n"


def _version_script(exports: Sequence[str]) -> str:
    versions: dict[str, list[str]] = {}
    for symbol in exports:
        plain, _, version = symbol.partition("@")
        if version:
            versions.setdefault(version, []).append(plain)
    return "".join(
        f"{version} {{ global: {' '.join(f'{symbol};' for symbol in symbols)} }};\n"
        for version, symbols in versions.items()
    )


def _plain(symbol: str) -> str:
    return symbol.partition("@")[0]


@cache
def _linked(
    name: str,
    source: str,
    version_script: str,
    needed: tuple[tuple[str, tuple[str, ...]], ...],
    sections: tuple[tuple[str, bytes], ...],
    flags: tuple[str, ...],
) -> bytes:
    assert GCC is not None, "gcc is not installed"
    with tempfile.TemporaryDirectory(prefix="envspec-objects-") as work:
        folder = Path(work)
        text = [source]
        for number, (section, content) in enumerate(sections):
            (folder / f"section-{number}").write_bytes(content)
            text.append(
                f'__asm__(".pushsection {section},\\"a\\"\\n.balign 8\\n.incbin \\"section-{number}\\"\\n.popsection");\n'
            )
        (folder / "source.c").write_text("".join(text), encoding="utf-8")
        arguments = ["-Wl,--no-as-needed"]
        for number, (library, symbols) in enumerate(needed):
            (folder / f"needed-{number}").write_bytes(_stub(library, symbols))
            arguments.append(f"needed-{number}")
        if version_script:
            (folder / "versions").write_text(version_script, encoding="utf-8")
            arguments.append("-Wl,--version-script=versions")
        argv = [GCC, "-nostdlib", "-fPIC", "-o", name, "source.c", *arguments, "-Wl,--unresolved-symbols=ignore-all"]
        done = process.run([*argv, "-Wl,--build-id=none", *flags], cwd=folder)
        assert done.returncode == 0, done.stderr
        return (folder / name).read_bytes()


def _stub(library: str, symbols: tuple[str, ...]) -> bytes:
    """A library for the linker that has a soname, and the symbols with the versions that are asked of it."""
    versions = sorted({symbol.partition("@")[2] for symbol in symbols})
    return _linked(
        "stub.so",
        _source(exports=symbols, hidden=(), undefined=(), weak=()),
        _version_script([symbol for version in versions for symbol in symbols if symbol.endswith(f"@{version}")]),
        (),
        (),
        ("-shared", f"-Wl,-soname,{library}"),
    )
