"""The proof that an environment's modules import, by its own interpreter, in one process, in the order asked for.

What a module does at import is its own affair, so the process gets as little of this machine as possible: `-I` (no PYTHON* variables, no user
site, nothing of the working directory), a few environment variables by name, a home and caches in a scratch folder, no model hub, no bytecode
written (`-B`: the environment has its own and must stay as it was proven). Modules may print, crash, hang, exit or fork: results go through a
file that they do not know of, what they print is kept as evidence, and a module that ends the process is named.

A failure keeps every exception of the chain, because the one that is raised last is often a guess of the package's ("please install ...").
The root cause is the innermost one, but for those that began and ended within the standard library: there they are a way to find out, as the
StopIteration is that `importlib.metadata` turns into PackageNotFoundError.

Where there is no NVIDIA driver, `driver_stub` stands in for it. Without a compiler to build the stub the proof is skipped, which is not a pass.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder import process
from builder.agent.driver_stub import (
    NoStub,
    build_stub,
    driver_symbols,
    ending_name,
    find_compiler,
    has_driver,
    load_errors,
)
from envspec.errors import EnvspecError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Result = Literal["pass", "fail", "skip"]

# Beyond these nothing of the caller's environment reaches a module: neither a secret nor what makes one host differ from another.
_KEPT_VARIABLES = re.compile(r"PATH|LANG|LANGUAGE|LC_[A-Z]+|TZ|USER|LOGNAME|(?:CUDA|NVIDIA)_[A-Z0-9_]+")

_SCRATCH_VARIABLES = {
    "HOME": "home",
    "TMPDIR": "tmp",
    "XDG_CACHE_HOME": "home/.cache",
    "XDG_CONFIG_HOME": "home/.config",
    "XDG_DATA_HOME": "home/.local/share",
    "XDG_STATE_HOME": "home/.local/state",
    "TRITON_CACHE_DIR": "cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "cache/inductor",
    "TORCH_EXTENSIONS_DIR": "cache/torch_extensions",
    "FLASHINFER_WORKSPACE_BASE": "cache/flashinfer",
    "CUDA_CACHE_PATH": "cache/cuda",
}
_FIXED_VARIABLES = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONNOUSERSITE": "1"}

_GRACE_S = 1.0  # between the watchdog that writes where a module hangs and the end of the process
_NOISE_LIMIT = 4000  # characters of each stream that are kept, from its end
_EVIDENCE_LIMIT = 20_000

_MODULE_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")

_DEBIAN_EXCEPTIONS = {"libz.so.1": "zlib1g", "libglib-2.0.so.0": "libglib2.0-0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedException:
    """One exception of a chain."""

    relation: Literal["raised", "cause", "context", "suppressed context", "member"]
    """How it stands to the one before: `cause` by `raise ... from`, `context` if raised while it was handled, `member` of a group."""

    type: str
    """`builtins` are named without their module."""

    message: str
    frames: tuple[str, ...]
    """`file:line in function`, outermost first; files of the environment are relative to it. Those of the import system are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModule:
    """What became of one module."""

    module: str
    result: Result
    """`skip`: not reached, because a module before it ended the process, or because nothing was run at all."""

    seconds: float | None = None
    """None if the import did not end."""

    reason: str = ""
    """One line; empty if it imports."""

    root_cause: str = ""
    """One exception of the chain in one line with its place, as the module's docstring says; empty if no exception was raised."""

    chain: tuple[RaisedException, ...] = ()
    """From the exception that was raised to the innermost one, then what branches off."""

    evidence: str = ""
    """The chain as text, or the traceback of a crash or a hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProof:
    """What became of all modules."""

    result: Result
    with_stub: bool
    """Whether a stub stood in for the driver."""

    reason: str = ""
    """One line, the first thing that is wrong; empty for a pass."""

    hint: str = ""
    modules: tuple[ImportedModule, ...] = ()
    """In the order asked for."""

    missing_libraries: tuple[str, ...] = ()
    """Host libraries that cannot be loaded."""

    stdout: str = ""
    """The end of what the modules printed."""

    stderr: str = ""

    def to_json(self) -> dict[str, Any]:
        """The record that receipts and `--json` carry."""
        # A round trip turns tuples into lists, so that the record equals the one that is read back.
        record: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return record


def prove_imports(
    python: Path,
    modules: Sequence[str],
    *,
    env_root: Path,
    scratch: Path,
    environ: Mapping[str, str],
    timeout_s: float,
    libraries: Sequence[str] = (),
) -> ImportProof:
    """Import modules in an environment and tell what happened.

    Args:
        python: The environment's own interpreter.
        modules: Dotted names, imported in this order in one process; the first failure does not end it.
        env_root: The environment: its files are read for what they need of a driver, and paths are told relative to it.
        scratch: An empty folder for this proof, outside the environment; the caller deletes it.
        environ: Environment variables, of which only a few are passed on.
        timeout_s: Seconds for all modules together.
        libraries: Host libraries that the environment declares, such as `libnuma.so.1`. If one is missing, nothing is imported.

    Raises:
        EnvspecError: A name is not a module's.
        OSError: The scratch folder cannot be written.
    """
    problems = tuple(
        Problem(message=f"`{name}` is not the name of a module", where="[verify] imports")
        for name in modules
        if not _MODULE_NAME.fullmatch(name)
    )
    if problems:
        raise EnvspecError(
            "modules cannot be imported by these names", input_name="[verify] imports", problems=problems
        )
    if not modules:
        return ImportProof(result="skip", with_stub=False, reason="no modules to import")
    clean = _clean_environment(environ, env_root, scratch)
    try:
        unloadable = load_errors(python, libraries, environ=clean)
        if unloadable:
            return _without_libraries(unloadable, modules)
        needs = () if has_driver(python, environ=clean) else driver_symbols(_files_below(env_root))
    except EnvspecError as error:
        return _nothing_run("fail", error.message, modules)
    if needs:
        stub = build_stub(scratch / "driver_stub", needs, find_compiler(environ), environ=environ)
        if isinstance(stub, NoStub):
            return _nothing_run("skip", stub.reason, modules, hint="install a C compiler, such as `gcc`")
        clean["LD_LIBRARY_PATH"] = str(stub.folder)
    return _run(python, modules, _Places.of(python, env_root, scratch), clean, timeout_s)


def debian_package(soname: str) -> str:
    """The name of the Debian package that a library is in, by Debian's naming rule; empty where it does not follow.

    Example:
        >>> debian_package("libnuma.so.1"), debian_package("libX11.so.6"), debian_package("libtorch.so")
        ('libnuma1', 'libx11-6', '')
    """
    if soname in _DEBIAN_EXCEPTIONS:
        return _DEBIAN_EXCEPTIONS[soname]
    match = re.fullmatch(r"(lib[A-Za-z0-9.+_-]+)\.so\.([0-9]+)", soname)
    if match is None:
        return ""
    name = match[1].lower().replace("_", "-")
    return f"{name}-{match[2]}" if name[-1].isdigit() else f"{name}{match[2]}"


def _without_libraries(unloadable: Mapping[str, str], modules: Sequence[str]) -> ImportProof:
    packages = [debian_package(soname) for soname in unloadable]
    named = " ".join(package for package in packages if package)
    reason = "; ".join(f"the host library `{soname}` cannot be loaded: {said}" for soname, said in unloadable.items())
    hint = f"install them: on Debian and Ubuntu `apt-get install {named}`" if named else "install them on the host"
    return _nothing_run("fail", reason, modules, hint=hint, missing_libraries=tuple(unloadable))


def _nothing_run(
    result: Result, reason: str, modules: Sequence[str], *, hint: str = "", missing_libraries: tuple[str, ...] = ()
) -> ImportProof:
    return ImportProof(
        result=result,
        with_stub=False,
        reason=reason,
        hint=hint,
        modules=tuple(ImportedModule(module=name, result="skip", reason="nothing was imported") for name in modules),
        missing_libraries=missing_libraries,
    )


def _clean_environment(environ: Mapping[str, str], env_root: Path, scratch: Path) -> dict[str, str]:
    clean = {name: value for name, value in environ.items() if _KEPT_VARIABLES.fullmatch(name)}
    clean["PATH"] = os.pathsep.join(part for part in (str(env_root / "bin"), clean.get("PATH", "")) if part)
    for name, place in _SCRATCH_VARIABLES.items():
        folder = scratch / place
        folder.mkdir(parents=True, exist_ok=True)
        clean[name] = str(folder)
    return {**clean, **_FIXED_VARIABLES}


def _files_below(root: Path) -> Iterator[Path]:
    """Regular files in a fixed order; links are left out, as they are other names of the same files."""
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Paths of this machine, and what stands for them in a proof: the same failure reads the same on every host."""

    scratch: Path
    replacements: tuple[tuple[str, str], ...]
    """Longest first."""

    @classmethod
    def of(cls, python: Path, env_root: Path, scratch: Path) -> _Places:
        base = Path(os.path.realpath(python)).parent.parent
        known = {f"{base}/lib/python": "<python>/lib/python"}
        for folder, name in ((scratch, "<scratch>/"), (env_root, "")):
            known[f"{os.path.realpath(folder)}/"] = name
            known[f"{folder}/"] = name
        return cls(
            scratch=scratch, replacements=tuple(sorted(known.items(), key=lambda item: len(item[0]), reverse=True))
        )

    def hide(self, text: str) -> str:
        for path, name in self.replacements:
            text = text.replace(path, name)
        return text.encode("utf-8", "backslashreplace").decode()  # an exception may hold half a surrogate pair


@dataclass(slots=True, kw_only=True)
class _Record:
    """What the process wrote down."""

    done: dict[str, ImportedModule]
    started: str = ""
    """The last module that was begun."""

    ended: bool = False
    """Whether all modules were gone through."""


def _run(
    python: Path, modules: Sequence[str], places: _Places, environ: dict[str, str], timeout_s: float
) -> ImportProof:
    scratch = places.scratch
    results, faults = scratch / "results.jsonl", scratch / "faults.txt"
    for file in (results, faults):
        file.write_bytes(b"")
    done = process.run(
        [str(python), "-I", "-B", "-c", _RUNNER, str(results), str(faults), str(timeout_s), json.dumps(list(modules))],
        env=environ,
        cwd=scratch,
        timeout_s=timeout_s + _GRACE_S,
    )
    record = _read_results(results, places)
    stopped = "" if record.ended else _stop_reason(done, record, timeout_s)
    reached = []
    for name in modules:
        if name in record.done:
            reached.append(record.done[name])
        elif name == record.started:
            fault = faults.read_text(encoding="utf-8", errors="replace") or _fault_in(done.stderr)
            evidence = places.hide(fault)[:_EVIDENCE_LIMIT]
            reached.append(ImportedModule(module=name, result="fail", reason=stopped, evidence=evidence))
        else:
            reached.append(ImportedModule(module=name, result="skip", reason="not reached: the process had ended"))
    reason = next(
        (
            f"`{item.module}` does not import: {item.root_cause or item.reason}"
            for item in reached
            if item.result == "fail"
        ),
        stopped,
    )
    return ImportProof(
        result="fail" if reason else "pass",
        with_stub="LD_LIBRARY_PATH" in environ,
        reason=places.hide(reason),
        modules=tuple(reached),
        stdout=places.hide(done.stdout)[-_NOISE_LIMIT:],
        stderr=places.hide(done.stderr)[-_NOISE_LIMIT:],
    )


def _stop_reason(done: process.Completed, record: _Record, timeout_s: float) -> str:
    """How the process ended before its time."""
    if done.returncode == process.TIMED_OUT:
        how = f"no end after {timeout_s:g} s"
    elif done.returncode < 0:
        how = f"the process crashed with {ending_name(done.returncode)}"
        if done.returncode == -signal.SIGKILL:
            how = "the process was killed by SIGKILL, as the kernel does when memory runs out"
    else:
        how = f"the process ended with exit code {done.returncode} instead of going on"
    if not record.started:
        said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return f"{how} before the first import: {said[:200]}"
    return f"{how} after importing `{record.started}`" if record.started in record.done else how


def _fault_in(stderr: str) -> str:
    # A module may have turned faulthandler to stderr.
    start = stderr.rfind("Fatal Python error:")
    return stderr[start:] if start >= 0 else ""


def _read_results(path: Path, places: _Places) -> _Record:
    record = _Record(done={})
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # a crash may tear the last line
        match event:
            case {"begin": str(name)}:
                record.started = name
            case {"end": str(name), "seconds": float(seconds), "chain": list(rows), "innermost": int(innermost)}:
                record.done[name] = _module(name, seconds, [_exception(row, places) for row in rows], innermost)
            case {"all": True}:
                record.ended = True
            case _:
                continue
    return record


def _exception(row: Mapping[str, Any], places: _Places) -> RaisedException:
    return RaisedException(
        relation=row["relation"],
        type=row["type"],
        message=places.hide(row["message"]),
        frames=tuple(
            places.hide(f"{file}:{line} in {function}" if function else f"{file}:{line}")
            for file, line, function in row["frames"]
        ),
    )


def _module(name: str, seconds: float, chain: list[RaisedException], innermost: int) -> ImportedModule:
    if not chain:
        return ImportedModule(module=name, result="pass", seconds=seconds)
    while "context" in chain[innermost].relation and not _is_of_environment(chain[innermost]):
        innermost -= 1
    root = chain[innermost]
    place = f" ({root.frames[-1]})" if root.frames else ""
    return ImportedModule(
        module=name,
        result="fail",
        seconds=seconds,
        reason=_one_line(chain[0]),
        root_cause=_one_line(root) + place,
        chain=tuple(chain),
        evidence="\n".join(_as_text(exception) for exception in chain)[:_EVIDENCE_LIMIT],
    )


def _is_of_environment(exception: RaisedException) -> bool:
    # Its frames begin where it was handled, so one that was handled in the standard library has no others. Paths outside the environment are
    # absolute or stand in angle brackets.
    return any(not frame.startswith(("/", "<")) for frame in exception.frames)


def _one_line(exception: RaisedException) -> str:
    message = " ".join(exception.message.split())
    return f"{exception.type}: {message[:500]}" if message else exception.type


def _as_text(exception: RaisedException) -> str:
    lines = [f"{exception.relation}: {exception.type}: {exception.message}"]
    return "\n".join([*lines, *(f"  {frame}" for frame in exception.frames)])


# Runs in the environment, under any CPython >= 3.10. It opens the file of results anew for each line, by its path: a module may close every
# descriptor, and one that forks must not write twice.
_RUNNER = r"""
import faulthandler, importlib, json, os, signal, sys, time, traceback

def main(results, faults, timeout_s, modules):
    owner = os.getpid()

    def say(record):
        if os.getpid() != owner:
            os._exit(0)
        with open(results, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    fault_file = open(faults, "w")
    faulthandler.enable(fault_file)
    faulthandler.dump_traceback_later(timeout_s, file=fault_file)
    for module in modules:
        say({"begin": module})
        begin = time.perf_counter()
        chain, innermost = [], 0
        try:
            importlib.import_module(module)
        except BaseException as error:
            chain, innermost = describe(error)
        say({"end": module, "seconds": time.perf_counter() - begin, "chain": chain, "innermost": innermost})
    say({"all": True})
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # what a module started and left behind would hold our output open
    os._exit(0)  # what modules do at exit is not part of importing them

def describe(error):
    rows, seen, branches, innermost = [], set(), [("raised", error)], None
    while branches:
        relation, error = branches.pop(0)
        while error is not None and id(error) not in seen and len(rows) < 50:
            seen.add(id(error))
            rows.append({"relation": relation, "type": name_of(type(error)), "message": text_of(error), "frames": frames_of(error)})
            cause, context = error.__cause__, error.__context__
            members = list(getattr(error, "exceptions", ()) or ()) if is_group(error) else []
            ahead = []
            if cause is not None:
                ahead.append(("cause", cause))
            if context is not None:
                ahead.append(("suppressed context" if error.__suppress_context__ and cause is None else "context", context))
            ahead += [("member", member) for member in members]
            relation, error = ahead[0] if ahead else ("", None)
            branches += ahead[1:]
        if innermost is None:
            innermost = len(rows) - 1
    return rows, innermost

def is_group(error):
    return any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__)

def name_of(kind):
    return kind.__qualname__ if kind.__module__ == "builtins" else "%s.%s" % (kind.__module__, kind.__qualname__)

def text_of(error):
    try:
        return str(error)[:4000]
    except Exception:
        return "(its message cannot be had)"

def frames_of(error):
    rows = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        ours = frame.f_globals is globals() or file == importlib.__file__
        if not ours and not file.startswith("<frozen importlib"):
            rows.append([file, line, frame.f_code.co_name])
    if isinstance(error, SyntaxError) and error.filename:
        rows.append([str(error.filename), error.lineno, ""])
    return rows if len(rows) <= 100 else rows[:20] + [["...", len(rows) - 100, ""]] + rows[-80:]

arguments = sys.argv[1:]
del sys.argv[1:]
main(arguments[0], arguments[1], float(arguments[2]), json.loads(arguments[3]))
"""
