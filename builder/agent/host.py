"""What there is on this machine: system, Pythons, driver, GPUs, libraries, and room for a store. Measured, not judged; nothing is left behind.

Each question may fail by itself: an answer that cannot be had is empty, with the reason in `notes`.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
import time
from pathlib import Path

from builder.agent.answers import Answers
from builder.agent.store import write_new
from envspec.errors import EnvspecError

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from builder.agent.interpreter import Interpreter
    from builder.agent.store import Store

SMI_TIMEOUT_S = 20.0
_SMI_FIELDS = "index,name,compute_cap,memory.total,driver_version"
LINKER_CACHE = "/etc/ld.so.cache"
_FICLONE = 0x40049409

# Runs in a child, since a broken driver may crash or hang whoever loads it. The numbers are CUdevice_attribute of cuda.h.
_ASK_CUDA = r"""
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
number = ctypes.c_int()
def ask(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise SystemExit("%s gave error %d" % (name, code))
ask("cuDriverGetVersion", ctypes.byref(number))
version = "%d.%d" % (number.value // 1000, number.value % 1000 // 10)
ask("cuInit", 0)
ask("cuDeviceGetCount", ctypes.byref(number))
gpus = []
for index in range(number.value):
    device, name, parts = ctypes.c_int(), ctypes.create_string_buffer(256), []
    ask("cuDeviceGet", ctypes.byref(device), index)
    ask("cuDeviceGetName", name, 256, device)
    for attribute in (75, 76):
        ask("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        parts.append(str(number.value))
    gpus.append({"name": name.value.decode("ascii", "replace"), "compute": ".".join(parts)})
print(json.dumps({"cuda": version, "gpus": gpus}))
"""


def host_facts(
    store: Store,
    environ: Mapping[str, str],
    *,
    find_python: Callable[[], Interpreter],
    libraries: Sequence[str] = (),
    anew: bool = False,
) -> dict[str, Any]:
    """Everything that a preflight wants to know.

    Args:
        store: Where the store lies or will lie.
        environ: This process's environment.
        find_python: Finds the Python of the environment, or says in an `EnvspecError` what it looked at.
        libraries: Host libraries that the environment declares.
        anew: Whether programs are asked although the store remembers their answers, and nothing has changed since.

    Returns:
        JSON; `envspec.preflight.HostFacts` has its meaning.
    """
    notes: list[str] = []
    answers = None if anew else Answers(folder=store.facts, environ=environ)
    interpreter: dict[str, Any] | None = None
    rejected: list[str] = []
    try:
        interpreter = find_python().to_json()
    except EnvspecError as error:
        rejected = [f"{problem.where}: {problem.message}" for problem in error.problems]
    return {
        **machine_facts(environ, notes),
        "uid": os.geteuid(),
        "time_s": time.time(),
        "agent_python": {"path": os.path.realpath(sys.executable), "version": sys.version.split()[0]},
        "interpreter": interpreter,
        "rejected_pythons": rejected,
        "libraries": _libraries(libraries, interpreter, environ, answers),
        "tools": _tools(interpreter, environ, answers),
        "store": _store_facts(store),
        "notes": notes,
    }


def machine_facts(environ: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    """What a machine is, as receipts say it: system, driver and GPUs.

    Args:
        environ: This process's environment.
        notes: Gets what could not be found out, and why.
    """
    kernel = os.uname()
    return {
        "hostname": kernel.nodename,
        "user": user_name(),
        "system": _system(),
        "kernel": kernel.release,
        "machine": kernel.machine,
        "glibc": _glibc(),
        **_driver(environ, notes),
    }


def user_name(uid: int | None = None) -> str:
    """The name of a user, by default of who this process runs as: the number where the number has no name."""
    import pwd  # noqa: PLC0415 - each question loads what it needs

    uid = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(uid)


def _system() -> str:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        with contextlib.suppress(OSError):
            text = Path(path).read_text(encoding="utf-8", errors="replace")
            match = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', text, re.MULTILINE)
            if match:
                return match[1]
    return os.uname().sysname


def _glibc() -> str:
    """Its version; empty on another C library."""
    with contextlib.suppress(ValueError, OSError):
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return version if name == "glibc" else ""
    return ""


def _driver(environ: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    """The NVIDIA driver and its GPUs: by nvidia-smi, else by libcuda and the kernel's files."""
    gpus: list[dict[str, Any]] = []
    driver = ""
    if _which("nvidia-smi", environ.get("PATH", os.defpath)):
        from builder import process  # noqa: PLC0415 - not where nothing is to be started

        done = process.run(
            ["nvidia-smi", f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"],
            env=dict(environ),
            timeout_s=SMI_TIMEOUT_S,
        )
        if done.returncode == 0:
            for line in done.stdout.splitlines():
                values = [value.strip() for value in line.split(",")]
                if len(values) == len(_SMI_FIELDS.split(",")):
                    gpus.append({"name": values[1], "compute": values[2], "memory_mib": _number(values[3])})
                    driver = values[4]
            return {"driver": _version_in(driver), "cuda_driver": "", "gpus": gpus}
        if done.returncode != process.CANNOT_START:
            said = (done.stdout.strip() or done.stderr.strip()).splitlines() or ["it said nothing"]
            notes.append(f"nvidia-smi ended with rc {done.returncode}: {said[0][:200]}")
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"(?:Kernel Module[^\n]*?)\s(\d+\.\d+(?:\.\d+)?)\s", text)
        driver = match[1] if match else ""
    if not driver and not Path("/dev/nvidiactl").exists():
        return {"driver": "", "cuda_driver": "", "gpus": []}
    from builder import process  # noqa: PLC0415 - as above

    done = process.run([sys.executable, "-I", "-S", "-c", _ASK_CUDA], env=dict(environ), timeout_s=SMI_TIMEOUT_S)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines() or [f"rc {done.returncode}"]
        notes.append(f"libcuda.so.1 does not answer: {said[-1][:200]}")
        answer = {"cuda": "", "gpus": []}
    gpus = [{"name": gpu["name"], "compute": gpu["compute"], "memory_mib": 0} for gpu in answer["gpus"]]
    return {"driver": driver, "cuda_driver": answer["cuda"], "gpus": gpus}


def _version_in(text: str) -> str:
    match = re.match(r"\d+(?:\.\d+)*", text)
    return match[0] if match else ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _libraries(
    sonames: Sequence[str],
    interpreter: Mapping[str, Any] | None,
    environ: Mapping[str, str],
    answers: Answers | None,
) -> dict[str, str]:
    """Soname -> where it lies; empty if it cannot be loaded."""
    if not sonames:
        return {}
    cached: dict[str, str] = {}
    for program in (_which("ldconfig", environ.get("PATH", os.defpath)), "/sbin/ldconfig"):
        found = _linker_cache(program, sonames, environ, answers) if program else None
        if found is not None:
            cached = found
            break
    missing = [soname for soname in sonames if soname not in cached]
    failed: Mapping[str, str] = {}
    if missing:
        from builder.agent.driver_stub import load_errors  # noqa: PLC0415 - seldom needed

        python = Path(interpreter["path"] if interpreter else sys.executable)
        try:
            failed = load_errors(python, missing, environ=environ)
        except EnvspecError as error:
            failed = dict.fromkeys(missing, error.message)
    return {soname: cached.get(soname, "" if soname in failed else "found by the dynamic linker") for soname in sonames}


def _linker_cache(
    program: str, sonames: Sequence[str], environ: Mapping[str, str], answers: Answers | None
) -> dict[str, str] | None:
    """Soname -> where it lies, of those that the dynamic linker's cache has; None if ldconfig cannot tell."""
    question = " ".join(("-p", *sonames))
    if answers is not None:
        recalled = answers.recall(program, question)
        if isinstance(recalled, dict):
            return {str(soname): str(path) for soname, path in recalled.items()}
    asked_ns = time.time_ns()
    printed = _printed_libraries(program, environ)
    if printed is None:
        return None
    cached = {soname: path for soname, path in printed.items() if soname in sonames}
    if answers is not None:  # it prints what is in the cache, and nothing else
        answers.keep(program, question, cached, files=[program, LINKER_CACHE], asked_ns=asked_ns)
    return cached


def _printed_libraries(program: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    from builder import process  # noqa: PLC0415 - not where nothing is to be started

    done = process.run([program, "-p"], env=dict(environ), timeout_s=SMI_TIMEOUT_S)
    if done.returncode != 0:
        return None
    printed: dict[str, str] = {}
    kind = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(os.uname().machine, "")
    for soname, flags, path in re.findall(r"^\s*(\S+) \(([^)]*)\) => (\S+)$", done.stdout, re.MULTILINE):
        if kind in flags:  # a library for 32 bits has the same name
            printed.setdefault(soname, path)
    return printed


def cached_libraries(environ: Mapping[str, str]) -> dict[str, str]:
    """Soname -> path of what the dynamic linker has in its cache for programs of this machine; empty where there is no cache."""
    for program in (_which("ldconfig", environ.get("PATH", os.defpath)), "/sbin/ldconfig"):
        found = _printed_libraries(program, environ) if program else None
        if found is not None:
            return found
    return {}


def _which(name: str, path: str) -> str:
    """Where a program lies, as `shutil.which` says it, whose import costs more than all that is asked here; empty if nowhere."""
    for folder in path.split(os.pathsep):
        place = f"{folder}/{name}" if folder else name
        if os.access(place, os.X_OK) and not os.path.isdir(place):  # noqa: PTH112 - text
            return place
    return ""


def _nvcc_release(nvcc: str, environ: Mapping[str, str], answers: Answers | None) -> str:
    """The release of CUDA that a compiler belongs to; empty if it does not say."""
    recalled = None if answers is None else answers.recall(nvcc, "--version")
    if isinstance(recalled, str):
        return recalled
    from builder import process  # noqa: PLC0415 - not where nothing is to be started

    asked_ns = time.time_ns()
    done = process.run([nvcc, "--version"], env=dict(environ), timeout_s=SMI_TIMEOUT_S)
    match = re.search(r"release (\d+\.\d+)", done.stdout)
    release = match[1] if match else ""
    if answers is not None and release and done.returncode == 0:
        real = os.path.realpath(nvcc)
        with contextlib.suppress(OSError), open(real, "rb") as file:  # noqa: PTH123 - text
            if file.read(4) == b"\x7fELF":  # a script may start anything
                answers.keep(nvcc, "--version", release, files=[nvcc, real], asked_ns=asked_ns)
    return release


def _tools(
    interpreter: Mapping[str, Any] | None, environ: Mapping[str, str], answers: Answers | None
) -> dict[str, str]:
    """What there is for compiling: paths, the folder of `Python.h`, the CUDA release of nvcc; each empty where there is none."""
    path = environ.get("PATH", "")
    compilers = {
        "c_compiler": ("cc", "gcc", "clang"),
        "cxx_compiler": ("c++", "g++", "clang++"),
    }
    found = {
        tool: next((place for name in names if (place := _which(name, path))), "") for tool, names in compilers.items()
    }
    headers = ""
    if interpreter is not None:
        usual = f"{interpreter['base_prefix']}/include/python{'.'.join(interpreter['version'].split('.')[:2])}"
        headers = usual if Path(usual, "Python.h").is_file() else ""
    if interpreter is not None and not headers:
        from builder import process  # noqa: PLC0415 - not where nothing is to be started

        ask = "import sysconfig; print(sysconfig.get_path('include'))"
        done = process.run([interpreter["path"], "-I", "-S", "-c", ask], env=dict(environ), timeout_s=SMI_TIMEOUT_S)
        folder = done.stdout.strip()
        if done.returncode == 0 and folder and Path(folder, "Python.h").is_file():
            headers = folder
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = _which("nvcc", f"{home}/bin") or _which("nvcc", path)
    release = _nvcc_release(nvcc, environ, answers) if nvcc else ""
    return {**found, "python_headers": headers, "nvcc": release}


def _store_facts(store: Store) -> dict[str, Any]:
    root = store.root
    above = root
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    facts: dict[str, Any] = {"path": os.fspath(root), "exists": root.is_dir(), "problem": "", "owner_uid": None}
    try:
        room = os.statvfs(above)
        facts |= {"free_bytes": room.f_bavail * room.f_frsize, "free_inodes": room.f_favail, "inodes": room.f_files}
        facts["owner_uid"] = above.stat().st_uid
    except OSError as error:
        facts |= {"free_bytes": 0, "free_inodes": 0, "inodes": 0, "problem": f"`{above}`: {error.strerror}"}
    kind, options = _mount_of(above)
    facts["filesystem"] = kind
    facts["read_only"] = "ro" in options
    try:
        store.check_format()
    except EnvspecError as error:
        facts["problem"] = error.message
    facts["writable"], facts["links"], reason = _try_writing(store, above)
    facts["problem"] = facts["problem"] or reason
    return facts


def file_system_of(path: Path) -> str:
    """The kind of the file system that a path lies on: `ext4`; empty if unknown."""
    return _mount_of(path)[0]


def _mount_of(path: Path) -> tuple[str, tuple[str, ...]]:
    """Kind and options of the file system that a path lies on."""
    best, kind, options = -1, "", ""
    with contextlib.suppress(OSError):
        real = os.path.realpath(path)
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            place, flags = fields.split()[4:6]
            place = place.replace("\\040", " ")
            inside = place in {"/", real} or real.startswith(f"{place}/")
            if inside and len(place) >= best:  # a later mount at one place hides the earlier one
                best, kind, options = len(place), rest.split()[0], flags
    return kind, tuple(options.split(","))


def _try_writing(store: Store, above: Path) -> tuple[bool, str, str]:
    """Whether a store can be written, how files are shared in it, and why not."""
    folder = store.root / ".tmp"
    if not folder.is_dir():  # nothing is made just to look
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return True, "", ""
        return False, "", f"`{store.root}` cannot be made: `{above}` cannot be written by {user_name()}"
    first, second = folder / f"probe.{os.getpid()}", folder / f"probe.{os.getpid()}-2"
    try:
        write_new(first, b"x")
    except OSError as error:
        return False, "", f"`{store.root}` cannot be written: {error.strerror}"
    links = "copy"
    try:
        with contextlib.suppress(OSError):
            os.link(first, second)
            links = "hardlink"
            second.unlink()
        write_new(second, b"")
        with contextlib.suppress(OSError), first.open("rb") as source, second.open("r+b") as target:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
            links += "+reflink"
    finally:
        for path in (first, second):
            path.unlink(missing_ok=True)
    return True, links, ""
