"""The agent as one file, named by its sha256, and the command that starts it on a host.

Its own bytecode may lie beside it (`builder.agent.compiled`).

The command has to pass through whatever login shell a user has: one line without quotes inside of quotes. It finds a CPython >= 3.10, which runs
a bootstrap of a few lines: the agent comes from the store if it lies there with the right digest, else from the pipe, and is run from memory.
"""

from __future__ import annotations

import functools
import hashlib
import io
import shlex
import zipfile
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("builder/agent", "builder/probes")
MODULES = (
    "builder/__init__",
    "builder/binary_facts",
    "builder/bundle",
    "builder/elf",
    "builder/elf_image",
    "builder/fatbin",
    "builder/outcome",
    "builder/process",
    "builder/progress",
    "builder/session",
    "builder/startup_hooks",
    "builder/transports/__init__",
    "builder/transports/connection",
    "builder/transports/ssh",
    "envspec/__init__",
    "envspec/binaries",
    "envspec/canonical",
    "envspec/compose",
    "envspec/errors",
    "envspec/facts",
    "envspec/layout",
    "envspec/observed",
    "envspec/printable",
    "envspec/probe",
    "envspec/receipt",
    "envspec/tree",
)
PYTHONS = (
    "python3",
    *(f"python3.{minor}" for minor in range(15, 9, -1)),
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/usr/libexec/platform-python",
)
"""What is tried on a host, in this order; the first that is 3.10 or later runs the agent."""

_BOOTSTRAP = r"""
import gc, hashlib, os, sys
gc.set_threshold(50000, 20, 20)  # an agent makes few cycles, and lives for seconds
digest, size, store = sys.argv[2], int(sys.argv[3]), bytes.fromhex(sys.argv[4][1:]).decode()
if not store and os.geteuid() == 0:
    store = "/opt/envspec"
elif not store:
    store = (os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")) + "/envspec"
agent = b""
try:
    with open(store + "/agents/" + digest + ".zip", "rb") as file:
        agent = file.read(size + 1)
except OSError:
    pass
if hashlib.sha256(agent).hexdigest() != digest:
    os.write(1, b'\n{"need_agent":true}\n')
    agent = b""
    while len(agent) < size:
        chunk = os.read(0, size - len(agent))
        if not chunk:
            sys.exit(3)
        agent += chunk
    if hashlib.sha256(agent).hexdigest() != digest:
        os.write(1, b'\n{"damaged_agent":true}\n')
        sys.exit(3)
code = agent
try:
    from _frozen_importlib_external import MAGIC_NUMBER
    folder = os.open(store + "/agents", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    file = os.open("%s-%s.zip" % (digest, MAGIC_NUMBER.hex()), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    if any(os.fstat(each).st_uid != os.geteuid() or os.fstat(each).st_mode & 0o022 for each in (folder, file)):
        raise OSError("anybody could have written it")
    with open(file, "rb") as compiled:
        code = compiled.read(1 << 24)
    if hashlib.sha256(code[:-32]).digest() != code[-32:]:
        code = agent
except (ImportError, OSError):
    pass
memory = os.memfd_create("envspec-agent")
rest = memoryview(code)
while rest:
    rest = rest[os.write(memory, rest):]
sys.path.insert(0, "/proc/self/fd/%d" % memory)
from builder.agent.serve import main
main(store, digest, agent)
"""

# A Python says its version before it starts: asking one that is started costs four times as much.
_FIND_PYTHON = (
    "for python in {pythons}; do "
    'case "$("$python" -V 2>/dev/null)" in "Python 3."[1-9][0-9]*) '
    'exec "$python" -I -S -B -c "import sys; exec(bytes.fromhex(sys.argv[1]))" "$@";; esac; '
    'done; echo; echo "{{\\"no_python\\":true}}"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The agent's file."""

    content: bytes
    sha256: str

    def argv(self, store: str) -> tuple[str, ...]:
        """The command that starts it.

        Args:
            store: Folder of the store on the host; empty for the default of the user there.
        """
        script = _FIND_PYTHON.format(pythons=" ".join(PYTHONS))
        code = _BOOTSTRAP.encode().hex()
        # The leading letter keeps an empty word a word in every shell.
        return (
            "sh",
            "-c",
            script,
            "envspec-agent",
            code,
            self.sha256,
            str(len(self.content)),
            "x" + store.encode().hex(),
        )

    def command(self, store: str) -> str:
        """The same as one line for a login shell."""
        return "exec " + shlex.join(self.argv(store))


@functools.cache
def make_bundle() -> Bundle:
    """The agent's file: the same bytes whenever and wherever it is made from the same sources."""
    root = Path(__file__).resolve().parents[1]
    names = [f"{module}.py" for module in MODULES]
    names += [path.relative_to(root).as_posix() for package in PACKAGES for path in (root / package).glob("*.py")]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in sorted(names):
            archive.writestr(
                zipfile.ZipInfo(name), (root / name).read_bytes(), compress_type=zipfile.ZIP_DEFLATED, compresslevel=9
            )
    content = out.getvalue()
    return Bundle(content=content, sha256=hashlib.sha256(content).hexdigest())
