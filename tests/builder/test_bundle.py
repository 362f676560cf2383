"""The agent as one file: the same bytes every time, complete, and started by any CPython >= 3.10 through any login shell."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.agent.compiled import compile_agent
from builder.agent.store import Store
from builder.bundle import make_bundle
from envspec.errors import EnvspecError
from tests.support.agents import local_session

if TYPE_CHECKING:
    from builder.bundle import Bundle

ROOT = Path(__file__).resolve().parents[2]


def pythons() -> list[Path]:
    """Interpreters of this machine that must be able to run the agent."""
    found = [Path(path) for minor in range(10, 16) if (path := shutil.which(f"python3.{minor}"))]
    found += sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob("3.1[0-9]*/bin/python3")
    )
    usable: dict[bytes, Path] = {}
    for python in found:
        done = subprocess.run(
            [python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, check=False
        )
        if done.returncode == 0:
            usable.setdefault(done.stdout, python)
    return list(usable.values())


def test_bundle_is_the_same_whenever_it_is_made() -> None:
    first = make_bundle()
    make_bundle.cache_clear()
    assert make_bundle() == first
    assert len(first.content) < 320_000  # it travels at each connection; the probes are a quarter of it


def test_bundle_imports_nothing_that_it_does_not_have(tmp_path: Path) -> None:
    """Every module of it, from the file alone."""
    place = tmp_path / "agent.zip"
    place.write_bytes(make_bundle().content)
    with zipfile.ZipFile(io.BytesIO(make_bundle().content)) as archive:
        modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in archive.namelist()]
    # Probes are carried as files, and run by the environment that they probe.
    modules = [name for name in modules if not name.startswith("builder.probes.")]
    code = f"import sys; sys.path.insert(0, sys.argv[1])\nfor name in {modules}: __import__(name)"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, place], check=True, cwd=tmp_path)


def test_agent_that_tells_how_a_host_is_loads_no_more_than_that_takes() -> None:
    """With many hosts, or on a busy one, what an agent loads is most of what a status costs."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from builder.agent import answers, calls, generations, host, interpreter, observe, serve\n"
        "print(*sorted({'typing', 'shutil', 'subprocess', 'platform', 'builder.process', 'builder.agent.build', "
        "'builder.agent.proving', 'builder.agent.realise', 'zipfile', 'csv', 'tempfile'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, ROOT], check=True, capture_output=True, encoding="utf-8"
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.resolve().name)
def test_every_cpython_from_3_10_on_runs_the_agent(python: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(python)
    (programs / "sh").symlink_to("/bin/sh")
    with local_session(tmp_path / "store", path=str(programs)) as session:
        values = {"python": "3.99", "exact": "", "platform": "linux-x86_64", "only_python": "", "libraries": []}
        facts = session.call("facts", values)
    assert facts["interpreter"] is None
    assert facts["rejected_pythons"]


def test_too_old_python_is_passed_over(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    old = programs / "python3"
    old.write_text("#!/bin/sh\necho Python 3.9.18\n")
    old.chmod(0o755)
    (programs / "python3.10").symlink_to(sys.executable)
    (programs / "sh").symlink_to("/bin/sh")
    with local_session(tmp_path / "store", path=str(programs)) as session:
        assert session.call("generations", {"name": "x"}) == {"generations": []}


def test_agent_is_taken_from_the_store_only_with_the_right_digest(tmp_path: Path) -> None:
    bundle = make_bundle()
    agents = tmp_path / "store" / "agents"
    agents.mkdir(parents=True)
    place = agents / f"{bundle.sha256}.zip"
    place.write_bytes(bundle.content)
    with local_session(tmp_path / "store") as session:
        assert session.sent_bytes < 1000
    place.write_bytes(bundle.content[:-1] + b"x")
    with local_session(tmp_path / "store") as session:
        assert session.sent_bytes >= len(bundle.content)


PLACES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=60) | st.sampled_from(
    [
        "$(touch x)",
        "`touch x`",
        "a'b\"c",
        "-rf",
        "a\nb",
        " ",
        "*",
        "~",
        "a;touch x",
        "&& touch x",
        "\\",
        "%s",
        "\x1b[2J",
        "ü✓",
    ]
)


@given(store=PLACES)
def test_no_store_path_is_read_by_a_shell(store: str) -> None:
    """The command as the login shell gets it, with a Python that says what it was given."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "python3")
        python.write_text(
            '#!/bin/sh\nif [ "$1" = -V ]; then echo Python 3.10.0; else for word; do printf "%s:" "$word"; done; fi\n'
        )
        python.chmod(0o755)
        done = subprocess.run(
            ["/bin/sh", "-c", make_bundle().command(store)],
            env={"PATH": f"{folder}:{os.defpath}", "HOME": folder},
            cwd=folder,
            capture_output=True,
            check=True,
        )
        words = done.stdout.decode().split(":")[:-1]
        assert words[-1] == "x" + store.encode().hex()
        assert words[-3:-1] == [make_bundle().sha256, str(len(make_bundle().content))]
        assert (done.stderr, [path.name for path in Path(folder).iterdir()]) == (b"", ["python3"])


@settings(max_examples=15)
@given(name=PLACES.filter(lambda text: "/" not in text and text not in {".", ".."} and len(text.encode()) < 200))
def test_store_of_any_name_lies_where_it_is_said_to(name: str) -> None:
    """The real agent, by the real command: no byte of a path means anything else than itself."""
    with tempfile.TemporaryDirectory() as folder:
        with local_session(Path(folder, name)) as session:
            assert len(session.call("place", {"wheels": []})["missing"]) == 0
        assert [os.fsencode(path.name) for path in Path(folder).iterdir()] == [name.encode()]
        assert Path(folder, name, "store.json").is_file()


def planted(bundle: Bundle) -> bytes:
    """Bytecode of an agent that speaks another protocol: it shows whether it is run."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(bundle.content)) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"PROTOCOL = 1\n", b"PROTOCOL = 99\n"))
    return compile_agent(changed.getvalue())


@pytest.mark.parametrize(
    "spoilt", ["", "file for the group", "folder for all", "a link", "one byte", "cut off", "empty"]
)
def test_own_bytecode_is_run_only_where_nobody_else_can_have_written_it(tmp_path: Path, spoilt: str) -> None:
    bundle, store = make_bundle(), tmp_path / "store"
    python = sys.executable
    argv = [python, "-I", "-c", "import importlib.util as u; print(u.MAGIC_NUMBER.hex())"]
    magic = subprocess.run(argv, capture_output=True, encoding="utf-8", check=True).stdout.strip()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(python)
    (programs / "sh").symlink_to("/bin/sh")
    agents = store / "agents"
    agents.mkdir(parents=True)
    agents.chmod(0o755)
    place = agents / f"{bundle.sha256}-{magic}.zip"
    content = planted(bundle)
    if spoilt == "one byte":
        content = content[:1000] + bytes([content[1000] ^ 1]) + content[1001:]
    place.write_bytes({"cut off": content[:-100], "empty": b""}.get(spoilt, content))
    place.chmod(0o664 if spoilt == "file for the group" else 0o444)
    if spoilt == "folder for all":
        agents.chmod(0o777)
    elif spoilt == "a link":
        place.rename(tmp_path / "elsewhere")
        place.symlink_to(tmp_path / "elsewhere")
    if spoilt:
        with local_session(store, path=str(programs)) as session:
            assert session.call("generations", {"name": "x"}) == {"generations": []}
    else:
        with pytest.raises(EnvspecError, match="protocol 99"):
            local_session(store, path=str(programs))


def test_agent_leaves_its_bytecode_in_a_folder_of_its_own_only(tmp_path: Path) -> None:
    bundle = make_bundle()
    for name, mode in (("own", 0o755), ("shared", 0o775)):
        store = Store(tmp_path / name)
        store.ensure()
        (store.root / "agents").chmod(mode)
        with local_session(store.root) as session:
            session.call("gc", {"keep": 1, "dry_run": False})
    kept = [path.name for path in (tmp_path / "own" / "agents").iterdir()]
    assert len(kept) == 2
    assert all(name.startswith(bundle.sha256) for name in kept)
    assert [path.name for path in (tmp_path / "shared" / "agents").iterdir()] == [f"{bundle.sha256}.zip"]
    with local_session(tmp_path / "own") as session:  # from its bytecode
        assert session.call("generations", {"name": "x"}) == {"generations": []}


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "tcsh", "ksh"])
def test_command_passes_through_login_shells_unharmed(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    bundle = make_bundle()
    store = "/tmp/a b'c\"d$HOME`x`!\\"
    command = bundle.command(store).replace("exec sh -c", "printf %s:", 1)
    done = subprocess.run(
        [program, "-c", command], capture_output=True, check=True, env={"PATH": os.defpath, "HOME": "/"}
    )
    assert done.stdout.decode() == "".join(f"{word}:" for word in bundle.argv(store)[2:])
    assert "\n" not in command
    assert shlex.split(bundle.command(store))[1:] == list(bundle.argv(store))


@pytest.mark.parametrize("own_bytecode", [False, True])
def test_probes_travel_in_the_agent_and_are_read_from_it(tmp_path: Path, own_bytecode: bool) -> None:  # noqa: FBT001
    content = make_bundle().content
    place = tmp_path / "agent.zip"
    place.write_bytes(compile_agent(content) if own_bytecode else content)
    ask = (
        "import hashlib, json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from builder.agent.probe_scripts import read_scripts\n"
        "found = read_scripts()\n"
        "assert found.abouts, 'there are none'\n"
        "print(json.dumps({name: hashlib.sha256(source).hexdigest() for name, source in found.sources.items()}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", ask, str(place)], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    here = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (ROOT / "builder/probes").glob("*.py")}
    here.pop("__init__.py")
    assert json.loads(done.stdout) == here
