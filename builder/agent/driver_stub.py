"""A stand-in for the NVIDIA driver's libraries, so that imports can be proven on a machine without a driver.

Extension modules are linked against `libcuda.so.1`, which comes with the driver and with no wheel: without it they cannot even be loaded. The
stub exports exactly the functions that the files of an environment leave undefined, and each of them returns an error code: whatever asks for
a device is told that there is none. So a proof with the stub shows that the files fit each other, and nothing about a GPU.

    needs = driver_symbols(files)
    stub = build_stub(folder, needs, find_compiler(environ))
    match stub: BuiltStub -> put its folder on LD_LIBRARY_PATH; NoStub -> the proof is skipped, with its reason

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import process
from builder.elf import read_elf_file
from builder.elf_image import ElfDamaged
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from builder.elf import UndefinedSymbol

CUDA_SONAME = "libcuda.so.1"
NVML_SONAME = "libnvidia-ml.so.1"

LOAD_TIMEOUT_S = 60.0
COMPILE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _DriverLibrary:
    function: re.Pattern[str]
    """What its functions are called; matching names are identifiers of C, so nothing else gets into the source of a stub."""

    error_code: int
    """What each function of the stub returns."""

    always: tuple[str, ...]
    """Functions that programs look up by name at run time, so that no file lists them."""


_DRIVER_LIBRARIES = {
    # 100: CUDA_ERROR_NO_DEVICE. cuFile* are functions of libcufile.so.0, which is in a wheel.
    CUDA_SONAME: _DriverLibrary(
        function=re.compile(r"cu(?!File)[A-Z][A-Za-z0-9_]*"), error_code=100, always=("cuInit",)
    ),
    # 9: NVML_ERROR_DRIVER_NOT_LOADED.
    NVML_SONAME: _DriverLibrary(function=re.compile(r"nvml[A-Za-z0-9_]*"), error_code=9, always=("nvmlInit_v2",)),
}

# Most of an environment's files are text, and opening 57,000 files costs seconds. A library of one of these names would have to be loaded by
# its full name; then the stub lacks its symbols and the proof fails, which is the safe side.
_NEVER_LOADED = frozenset(
    {
        *(".py", ".pyc", ".pyi", ".pyx", ".pxd", ".pth", ".typed", ".ipynb"),
        *(".c", ".cc", ".cpp", ".cu", ".cuh", ".f90", ".h", ".hh", ".hpp", ".inc", ".inl", ".proto", ".cmake", ".pc"),
        *(".cfg", ".in", ".ini", ".jinja", ".json", ".jsonl", ".sh", ".toml", ".tpl", ".xml", ".yaml", ".yml"),
        *(".css", ".html", ".js", ".md", ".rst", ".svg", ".txt", ".csv", ".map", ".pem"),
        *(".a", ".o", ".cubin", ".gif", ".gz", ".jpg", ".npy", ".npz", ".png", ".whl", ".zip"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverNeed:
    """A library of the driver that an environment's files are linked against."""

    soname: str
    symbols: tuple[str, ...]
    """Functions that those files leave undefined, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltStub:
    """A folder for LD_LIBRARY_PATH that holds the stubs and nothing else."""

    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class NoStub:
    """There is no stub."""

    reason: str


def driver_symbols(tree_files: Iterable[Path]) -> tuple[DriverNeed, ...]:
    """What the files of an environment need of the driver.

    Args:
        tree_files: Regular files; those that are not ELF, or damaged, need nothing.

    Returns:
        One entry for each library of the driver that a file is linked against, in the order of their names; empty if none is.
    """
    found: dict[str, set[str]] = {}
    for path in tree_files:
        if path.suffix in _NEVER_LOADED:
            continue
        try:
            facts = read_elf_file(path)
            sonames = [soname for soname in _DRIVER_LIBRARIES if facts is not None and soname in facts.needed]
            facts = read_elf_file(path, symbols=True) if sonames else None
        except (ElfDamaged, OSError):
            continue  # the import says more about it than this could
        for soname in sonames:
            symbols = found.setdefault(soname, set())
            if facts is not None and facts.symbols is not None:
                symbols.update(symbol.name for symbol in facts.symbols.undefined if _is_of(soname, symbol))
    return tuple(DriverNeed(soname=soname, symbols=tuple(sorted(found[soname]))) for soname in sorted(found))


def find_compiler(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The C compiler of this machine as the beginning of an argv: CC, or cc, gcc or clang in PATH; None if there is none."""
    try:
        chosen = shlex.split(environ.get("CC", ""))
    except ValueError:  # an unbalanced quote
        chosen = []
    for words in (chosen, ["cc"], ["gcc"], ["clang"]):
        program = shutil.which(words[0], path=environ.get("PATH", "")) if words else None
        if program is not None:
            return (program, *words[1:])
    return None


def build_stub(
    directory: Path, needs: Sequence[DriverNeed], compiler: Sequence[str] | None, *, environ: Mapping[str, str]
) -> BuiltStub | NoStub:
    """Compile stand-ins for libraries of the driver.

    Args:
        directory: Where to write them; made if missing.
        needs: Which libraries, with which functions. Names that are no identifier are left out: they come from files that anybody wrote.
        compiler: The beginning of an argv; None if there is none.
        environ: Environment variables of the compiler.

    Raises:
        OSError: The directory cannot be written.
    """
    if compiler is None:
        return NoStub(reason="no NVIDIA driver and no C compiler to build a stub")
    libraries = directory / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    for need in needs:
        source = directory / f"{need.soname}.c"
        source.write_text(stub_source(need), encoding="ascii")
        # No libc: the functions need nothing of it, and so the stub fits every machine.
        options = ["-shared", "-fPIC", "-nostdlib", "-w", "-fno-builtin", f"-Wl,-soname,{need.soname}"]
        done = process.run(
            [*compiler, *options, "-o", str(libraries / need.soname), str(source)],
            env=environ,
            timeout_s=COMPILE_TIMEOUT_S,
        )
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            return NoStub(
                reason="no NVIDIA driver, and the C compiler cannot build a stub: "
                f"`{compiler[0]}` ended with rc {done.returncode}: {said[:200]}"
            )
    return BuiltStub(folder=libraries)


def stub_source(need: DriverNeed) -> str:
    """The C source of a stub.

    Raises:
        KeyError: The library is none of the driver's.
    """
    library = _DRIVER_LIBRARIES[need.soname]
    names = {name for name in (*need.symbols, *library.always) if library.function.fullmatch(name)}
    return "".join(f"int {name}(void) {{ return {library.error_code}; }}\n" for name in sorted(names))


def has_driver(python: Path, *, environ: Mapping[str, str]) -> bool:
    """Whether an interpreter can load the driver's `libcuda.so.1` on this machine.

    Args:
        python: The interpreter that would load it: another one may search other folders.
        environ: Its whole environment.

    Raises:
        EnvspecError: The interpreter cannot be asked.
    """
    return not load_errors(python, (CUDA_SONAME,), environ=environ)


def load_errors(python: Path, sonames: Sequence[str], *, environ: Mapping[str, str]) -> dict[str, str]:
    """Which libraries an interpreter cannot load on this machine.

    Args:
        python: The interpreter.
        sonames: Names as a program would pass them to dlopen(3).
        environ: Its whole environment.

    Returns:
        For each library that cannot be loaded, in the order asked for, what the dynamic linker says.

    Raises:
        EnvspecError: The interpreter cannot be asked.
    """
    if not sonames:
        return {}
    done = process.run([str(python), "-I", "-S", "-c", _LOADER, *sonames], env=environ, timeout_s=LOAD_TIMEOUT_S)
    answers: dict[str, str] = {}
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            answers.update(json.loads(line[len(_MARK) :]))
    for soname in sonames:
        if soname not in answers:
            # Each answer is written as soon as it is known, so the first one that is missing is the one that ended the process.
            if _READY not in answers:
                said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
                raise EnvspecError(
                    f"the interpreter cannot say whether `{soname}` can be loaded: rc {done.returncode}: {said[:200]}",
                    input_name=str(python),
                )
            answers[soname] = f"loading it ends the process ({ending_name(done.returncode)})"
            break
    return {soname: answers[soname] for soname in sonames if answers.get(soname)}


def ending_name(returncode: int) -> str:
    """How a process ended, in one word or two: `SIGSEGV`, `a timeout`, `rc 3`."""
    if returncode == process.TIMED_OUT:
        return "a timeout"
    try:
        return signal.Signals(-returncode).name
    except ValueError:  # an exit code, or a real-time signal
        return f"rc {returncode}"


def _is_of(soname: str, symbol: UndefinedSymbol) -> bool:
    # A symbol with a version says itself which library it is expected from.
    return symbol.library in ("", soname) and _DRIVER_LIBRARIES[soname].function.fullmatch(symbol.name) is not None


_MARK = "envspec-load "
_READY = "/"  # no library is called that

_LOADER = """
import ctypes, json, sys
def say(name, error):
    sys.stdout.write("MARK" + json.dumps({name: error}) + "\\n")
    sys.stdout.flush()
say("READY", "")
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        say(name, str(error) or "it cannot be loaded")
    else:
        say(name, "")
""".replace("MARK", _MARK).replace("READY", _READY)
