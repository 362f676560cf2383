"""The CPython that an environment is built on, found on this machine.

An environment depends on its interpreter by path, so the path is that of the real program: no shim that may answer differently tomorrow, no
virtual environment that may be deleted. Only CPython with its GIL, 64-bit, on glibc and for the wanted machine will do: wheels of the stack
exist for nothing else.

Where it is looked for, in this order:

1. the path that answered the last time,
2. `uv python find`, without downloads,
3. `python3.12`, `python3` and `python` in PATH,
4. pyenv's versions, newest patch level first,
5. the usual folders, and uv's own,
6. `uv python install`, only where the caller allows it, and then 2 and 5 again.

A candidate that does not do is noted with the reason, and the search goes on: nothing about one candidate says anything about the next.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.agent.answers import Answers
from builder.agent.store import read_json, write_atomically
from envspec.errors import EnvspecError, Problem

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from builder.agent.store import Store

USUAL_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/python*/bin", "~/.local/bin")
"""Patterns of folders outside PATH where interpreters are often found; `~` is HOME."""

PROBE_TIMEOUT_S = 10.0
"""An interpreter answers within 0.02 s; a shim that runs an installer or waits for a network is not one."""

UV_TIMEOUT_S = 60.0
INSTALL_TIMEOUT_S = 900.0

_MARK = "envspec-interpreter "

# Runs in whatever is called python, so it avoids all syntax and modules that an old one may lack. The GIL and debugging show in abiflags.
_PROBE = """
import sys, os, json
import importlib.util, importlib.machinery
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (ValueError, OSError, AttributeError):
    libc = ""
suffixes = list(importlib.machinery.EXTENSION_SUFFIXES)
base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
folder = os.path.dirname(os.path.dirname(base))
if os.path.isfile(os.path.join(folder, "pyvenv.cfg")):
    # A virtual environment made of copies, under a CPython before 3.11: only its prefix leads out.
    base = os.path.realpath(os.path.join(sys.base_prefix, "bin", "python%d.%d" % sys.version_info[:2]))
version = "%d.%d.%d" % sys.version_info[:3]
if sys.version_info[3] != "final":
    version += "%s%d" % ({"alpha": "a", "beta": "b"}.get(sys.version_info[3], "rc"), sys.version_info[4])
answer = {
    "path": base,
    "version": version,
    "implementation": sys.implementation.name,
    "cache_tag": sys.implementation.cache_tag or "",
    "magic": importlib.util.MAGIC_NUMBER.hex(),
    "soabi": suffixes[0].strip(".").rpartition(".")[0] if suffixes else "",
    "ext_suffixes": suffixes,
    "abiflags": getattr(sys, "abiflags", ""),
    "bits": 64 if sys.maxsize > 2**32 else 32,
    "libc": libc,
    "machine": os.uname().machine,
    "base_prefix": sys.base_prefix,
}
try:
    # Every file that this answer follows from, so that it need not be asked for again while none of them changes.
    files = set()
    with open("/proc/self/maps") as maps:
        files.update(line.split(None, 5)[5].strip() for line in maps if "/" in line)
    for module in list(sys.modules.values()):
        cached = getattr(getattr(module, "__spec__", None), "cached", None)
        files.update([getattr(module, "__file__", None), cached if cached and os.path.isfile(cached) else None])
    answer["files"] = sorted(path for path in files if path and path.startswith("/"))
except Exception:
    pass
print("MARK" + json.dumps(answer))
""".replace("MARK", _MARK)


_ANSWER_KEYS = frozenset(re.findall(r'^    "(\w+)":', _PROBE, re.MULTILINE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A CPython that environments can be built on."""

    path: Path
    """The real program, outside any virtual environment; absolute, without links."""

    version: str
    """`3.12.1`."""

    implementation: str
    """`cpython`."""

    cache_tag: str
    """`cpython-312`: the middle of the names of bytecode files."""

    magic: str
    """The first four bytes of bytecode in hex; bytecode of another magic is not read."""

    soabi: str
    """`cpython-312-x86_64-linux-gnu`."""

    ext_suffixes: tuple[str, ...]
    """Suffixes of extension modules, the most special one first."""

    libc: str
    """`glibc 2.36`."""

    machine: str
    """`x86_64`, as `uname -m` has it."""

    base_prefix: str
    """Where its standard library lies, up to `lib`."""

    def to_json(self) -> dict[str, Any]:
        """The record that receipts and `--json` carry."""
        return {**asdict(self), "path": str(self.path), "ext_suffixes": list(self.ext_suffixes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    version: str
    exact: str
    machine: str
    timeout_s: float
    environ: Mapping[str, str]
    answers: Answers | None


class _Search:
    """One search: what was looked at so far, and why it will not do."""

    def __init__(self, wanted: _Wanted) -> None:
        self.wanted = wanted
        self.rejected: list[Problem] = []
        self._seen: set[tuple[str, str]] = set()

    def reject(self, where: str, reason: str) -> None:
        self.rejected.append(Problem(message=reason, where=where))

    def first_of(self, candidates: Iterable[Path]) -> Interpreter | None:
        for candidate in candidates:
            found = self.examine(candidate)
            if found is not None:
                return found
        return None

    def examine(self, candidate: Path) -> Interpreter | None:
        # Some shims are links to one program that goes by its own name, so the name is part of what was seen.
        key = (os.path.realpath(candidate), candidate.name)
        if key in self._seen or not _is_file(candidate):
            return None
        self._seen.add(key)
        answer = self._ask(candidate)
        if answer is None:
            return None
        base = Path(answer["path"])
        if base != candidate:
            # What the shim, link or virtual environment stands for has to answer by itself: it is what will be used.
            answer = self._ask(base, instead_of=candidate)
            if answer is None:
                return None
        return Interpreter(
            path=base,
            version=answer["version"],
            implementation=answer["implementation"],
            cache_tag=answer["cache_tag"],
            magic=answer["magic"],
            soabi=answer["soabi"],
            ext_suffixes=tuple(answer["ext_suffixes"]),
            libc=answer["libc"],
            machine=answer["machine"],
            base_prefix=answer["base_prefix"],
        )

    def _ask(self, program: Path, *, instead_of: Path | None = None) -> dict[str, Any] | None:
        where = str(program) if instead_of is None else f"{instead_of} (which is {program})"
        answers = self.wanted.answers
        answer = None if answers is None else _checked(answers.recall(str(program), _PROBE))
        if answer is not None and not _unfit(answer, self.wanted):
            return answer
        from builder import process  # noqa: PLC0415 - not where all is remembered

        asked_ns = time.time_ns()
        done = process.run(
            [str(program), "-I", "-S", "-c", _PROBE], env=self.wanted.environ, timeout_s=self.wanted.timeout_s
        )
        answer = _parse_answer(done.stdout)
        if done.returncode == process.TIMED_OUT and answer is None:
            self.reject(where, f"does not answer within {self.wanted.timeout_s:g} s")
            return None
        if done.returncode != 0 or answer is None:
            self.reject(where, f"does not start: rc {done.returncode}{_first_line(done.stderr, done.stdout)}")
            return None
        reason = _unfit(answer, self.wanted)
        if reason:
            self.reject(where, reason)
            return None
        files = answer.pop("files", None)
        # A script that starts another program is not among them: what it will say tomorrow follows from more than they are.
        if answers is not None and isinstance(files, list) and str(program) in files:
            answers.keep(str(program), _PROBE, answer, files=map(str, files), asked_ns=asked_ns)
        return answer


def find_interpreter(
    version: str,
    exact: str = "",
    *,
    environ: Mapping[str, str],
    uv: str | None = None,
    remembered: Path | None = None,
    platform: str = "linux-x86_64",
    may_install: bool = False,
    usual_folders: Sequence[str] = USUAL_FOLDERS,
    timeout_s: float = PROBE_TIMEOUT_S,
    answers: Answers | None = None,
) -> Interpreter:
    """Find the CPython of a version on this machine.

    Args:
        version: The minor version: `3.12`.
        exact: A full version that must be met: `3.12.3`; empty if any patch level will do.
        environ: Environment variables; PATH, HOME and PYENV_ROOT tell where to look, and candidates are started with all of them.
        uv: Path of uv; None if there is none here.
        remembered: What an earlier search found: if it still answers, nothing else is started.
        platform: `linux-x86_64` or `linux-aarch64`.
        may_install: Whether uv may fetch an interpreter over the network.
        usual_folders: Patterns of folders to look into besides PATH.
        timeout_s: Seconds that a candidate may take to answer.
        answers: What interpreters have answered before; None to ask each one.

    Raises:
        EnvspecError: None was found; it lists all that was looked at, each with the reason why it will not do.
    """
    wanted = _Wanted(
        version=version,
        exact=exact,
        machine=platform.partition("-")[2],
        timeout_s=timeout_s,
        environ=environ,
        answers=answers,
    )
    search = _Search(wanted)
    for candidates in _candidates(search, uv, remembered, usual_folders):
        found = search.first_of(candidates)
        if found is not None:
            return found
    if may_install and uv is not None:
        from builder import process  # noqa: PLC0415 - as above

        done = process.run(
            [uv, "python", "install", "--no-progress", "--no-bin", exact or version],
            env=environ,
            timeout_s=INSTALL_TIMEOUT_S,
        )
        if done.returncode != 0:
            search.reject("uv python install", f"failed: rc {done.returncode}{_first_line(done.stderr)}")
        found = search.first_of(_from_uv(search, uv)) or search.first_of(_in_uv_folder(search, uv))
        if found is not None:
            return found
    raise _not_found(search, platform, uv)


def interpreter_for(
    store: Store,
    python: str,
    exact: str,
    *,
    platform: str,
    environ: Mapping[str, str],
    uv: str | None = None,
    may_install: bool = False,
    only: str = "",
    anew: bool = False,
) -> Interpreter:
    """The Python of an environment on this machine; the store remembers where it was found, if it can be written.

    Args:
        store: The store.
        python: The minor version.
        exact: A full version that must be met; empty if any patch level will do.
        platform: `linux-x86_64` or `linux-aarch64`.
        environ: This process's environment.
        uv: Path of uv; None if there is none here.
        may_install: Whether uv may fetch an interpreter over the network.
        only: Path of the one interpreter that will do; empty if any will.
        anew: Whether it is asked although the store remembers what it answered, and nothing has changed since.

    Raises:
        EnvspecError: None was found; it lists all that was looked at.
    """
    answers = None if anew else Answers(folder=store.facts, environ=environ)
    if only:
        nowhere = {name: value for name, value in environ.items() if name not in ("PATH", "HOME", "PYENV_ROOT")}
        return find_interpreter(
            python, exact, environ=nowhere, remembered=Path(only), platform=platform, usual_folders=(), answers=answers
        )
    memory = store.facts / f"interpreter-{exact or python}.json"
    remembered = (read_json(memory) or {}).get("path")
    interpreter = find_interpreter(
        python,
        exact,
        environ=environ,
        uv=uv,
        remembered=Path(remembered) if isinstance(remembered, str) else None,
        platform=platform,
        may_install=may_install,
        answers=answers,
    )
    if remembered != os.fspath(interpreter.path):
        with contextlib.suppress(OSError):  # a store that is not there yet, or cannot be written, remembers nothing
            write_atomically(memory, json.dumps({"path": os.fspath(interpreter.path)}) + "\n")
    return interpreter


def _candidates(
    search: _Search, uv: str | None, remembered: Path | None, usual_folders: Sequence[str]
) -> Iterator[Iterable[Path]]:
    """The places in their order; each is looked up only when those before it have failed."""
    wanted = search.wanted
    if remembered is not None:
        if not _is_file(remembered):
            search.reject(str(remembered), "was used before and is gone")
        yield [remembered]
    if uv is not None:
        yield _from_uv(search, uv)
    names = (f"python{wanted.version}", "python3", "python")
    path = [Path(folder) for folder in wanted.environ.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
    yield [folder / name for name in names for folder in path]
    yield _in_pyenv(wanted)
    yield [folder / name for name in names[:2] for folder in _expand(usual_folders, wanted.environ)]
    yield _in_uv_folder(search, uv)


def _from_uv(search: _Search, uv: str) -> list[Path]:
    from builder import process  # noqa: PLC0415 - as above

    wanted = search.wanted
    request = wanted.exact or wanted.version
    done = process.run(
        [uv, "python", "find", "--no-python-downloads", "--no-project", request],
        env=wanted.environ,
        timeout_s=UV_TIMEOUT_S,
    )
    if done.returncode != 0:
        # uv gives up at the first program in PATH that does not start, such as a shim of pyenv.
        search.reject("uv python find", f"rc {done.returncode}{_first_line(done.stderr)}")
        return []
    return [Path(line) for line in done.stdout.splitlines()[:1] if line]


def _in_pyenv(wanted: _Wanted) -> list[Path]:
    home = wanted.environ.get("HOME", "")
    roots = [wanted.environ.get("PYENV_ROOT", ""), f"{home}/.pyenv" if home else ""]
    return _newest_first(
        [
            folder
            for root in dict.fromkeys(roots)
            if root
            for folder in Path(root, "versions").glob(f"{wanted.version}*")
        ],
        wanted.version,
    )


def _in_uv_folder(search: _Search, uv: str | None) -> list[Path]:
    wanted = search.wanted
    folders = [wanted.environ.get("UV_PYTHON_INSTALL_DIR", "")]
    if uv is not None:
        from builder import process  # noqa: PLC0415 - as above

        done = process.run([uv, "python", "dir"], env=wanted.environ, timeout_s=UV_TIMEOUT_S)
        folders += done.stdout.splitlines()[:1] if done.returncode == 0 else []
    home = wanted.environ.get("HOME", "")
    data = wanted.environ.get("XDG_DATA_HOME", "") or (f"{home}/.local/share" if home else "")
    folders.append(f"{data}/uv/python" if data else "")
    return _newest_first(
        [folder for root in dict.fromkeys(folders) if root for folder in Path(root).glob(f"cpython-{wanted.version}*")],
        wanted.version,
    )


def _newest_first(prefixes: Iterable[Path], version: str) -> list[Path]:
    """`bin/python3.12` of each prefix, the highest patch level first; prefixes that name no patch level (`3.12-dev`) come last."""

    def rank(prefix: Path) -> tuple[int, str]:
        match = re.search(rf"(?:^|-){re.escape(version)}\.(\d+)(?!\d)", prefix.name)
        return (-int(match[1]) if match else 1, prefix.name)

    return [prefix / "bin" / f"python{version}" for prefix in sorted(prefixes, key=rank)]


def _expand(patterns: Sequence[str], environ: Mapping[str, str]) -> list[Path]:
    folders: list[Path] = []
    for pattern in patterns:
        if pattern.startswith("~"):
            home = environ.get("HOME", "")
            folders += [Path(home + pattern[1:])] if home else []
        else:
            folders += sorted(Path("/").glob(pattern.lstrip("/")))
    return folders


def _parse_answer(stdout: str) -> dict[str, Any] | None:
    """The probe's line; a shim may have printed lines of its own before it."""
    for line in reversed(stdout.splitlines()):
        if line.startswith(_MARK):
            try:
                answer = json.loads(line[len(_MARK) :])
            except ValueError:
                return None
            return _checked(answer)
    return None


def _checked(answer: object) -> dict[str, Any] | None:
    return answer if isinstance(answer, dict) and answer.keys() >= _ANSWER_KEYS else None


def _unfit(answer: Mapping[str, Any], wanted: _Wanted) -> str:
    """Why an interpreter will not do; empty if it will."""
    version = str(answer["version"])
    if answer["implementation"] != "cpython":
        return f"is {answer['implementation']}, not CPython"
    if wanted.exact and version != wanted.exact:
        return f"is version {version}, wanted exactly {wanted.exact}"
    if not version.startswith(wanted.version + "."):
        return f"is version {version}, wanted {wanted.version}"
    if not wanted.exact and not re.fullmatch(r"[0-9.]+", version):
        return f"is the pre-release {version}"
    if answer["bits"] != 64:
        return f"is a {answer['bits']}-bit build"
    if "t" in answer["abiflags"]:
        return "is a free-threaded build: it has another ABI than the wheels"
    if answer["abiflags"]:
        return f"is a build with the ABI flags `{answer['abiflags']}` (d: debug): it has another ABI than the wheels"
    if not str(answer["libc"]).startswith("glibc "):
        return f"is built on another C library than glibc (its ABI is `{answer['soabi']}`)"
    if answer["machine"] != wanted.machine:
        return f"is for {answer['machine']}, wanted {wanted.machine}"
    return ""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that this user may not enter
        return False


def _first_line(*texts: str) -> str:
    for text in texts:
        for line in text.splitlines():
            if line.strip():
                return f": {line.strip()[:200]}"
    return ""


def _not_found(search: _Search, platform: str, uv: str | None) -> EnvspecError:
    wanted = search.wanted
    version = wanted.exact or wanted.version
    ways = [f"`uv python install {version}`"] if uv is not None else []
    ways += [f"`pyenv install {version}`", f"the distribution's package `python{wanted.version}`"]
    return EnvspecError(
        f"no CPython {version} for {platform} was found on this machine",
        input_name="[python]",
        hint=f"install one with {' or '.join(ways)}, or put one first in PATH",
        problems=tuple(search.rejected) or (Problem(message="no program was found to ask", where="PATH, pyenv, uv"),),
    )
