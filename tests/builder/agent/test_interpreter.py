"""The CPython of an environment is found, and what will not do is rejected with its reason."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from builder import process
from builder.agent.interpreter import Interpreter, find_interpreter
from envspec.errors import EnvspecError

THIS_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
THIS_EXACT = "{}.{}.{}".format(*sys.version_info[:3])
THIS_BASE = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
PLATFORM = f"linux-{os.uname().machine}"

ANSWER: dict[str, Any] = {
    "version": "3.99.2",
    "implementation": "cpython",
    "cache_tag": "cpython-399",
    "magic": "00000d0a",
    "soabi": f"cpython-399-{os.uname().machine}-linux-gnu",
    "ext_suffixes": [".so"],
    "abiflags": "",
    "bits": 64,
    "libc": "glibc 2.36",
    "machine": os.uname().machine,
    "base_prefix": "/opt/python",
}


class Machine:
    """A machine of our own making: a PATH, a home, and programs in them that claim to be interpreters."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls = root / "calls"
        for folder in ("bin", "bin2", "home"):
            (root / folder).mkdir()
        self.environ = {"PATH": f"{root / 'bin'}:{root / 'bin2'}", "HOME": str(root / "home")}

    def script(self, place: str, body: str) -> Path:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written by another name first: a file that is open for writing anywhere cannot be executed.
        path.with_suffix(".new").write_text(
            f"#!/bin/sh\nPATH=/usr/local/bin:/usr/bin:/bin\necho {place} >> {self.calls}\n{body}\n", encoding="utf-8"
        )
        path.with_suffix(".new").chmod(0o755)
        path.with_suffix(".new").rename(path)
        return path

    def python(self, place: str, *, path: Path | None = None, **claims: object) -> Path:
        answer = {**ANSWER, "path": str(path or self.root / place), **claims}
        return self.script(place, f"cat <<'END'\nenvspec-interpreter {json.dumps(answer)}\nEND")

    def called(self) -> list[str]:
        return self.calls.read_text(encoding="utf-8").split() if self.calls.exists() else []

    def find(self, version: str = "3.99", exact: str = "", **options: Any) -> Interpreter:
        options = {"platform": PLATFORM, "usual_folders": (), "environ": self.environ, **options}
        return find_interpreter(version, exact, **options)

    def rejections(self, version: str = "3.99", exact: str = "", **options: Any) -> dict[str, str]:
        with pytest.raises(EnvspecError) as caught:
            self.find(version, exact, **options)
        return {problem.where.replace(f"{self.root}/", ""): problem.message for problem in caught.value.problems}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# -- real interpreters ----------------------------------------------------------------------------------------------------------------


def test_this_interpreter_is_found_by_path_and_described_as_it_is() -> None:
    found = find_interpreter(
        THIS_VERSION,
        THIS_EXACT,
        environ={"PATH": str(Path(sys.executable).parent)},
        platform=PLATFORM,
        usual_folders=(),
    )
    assert found.path == THIS_BASE
    assert found.version == THIS_EXACT
    assert found.implementation == "cpython"
    assert found.cache_tag == sys.implementation.cache_tag
    assert found.base_prefix == sys.base_prefix
    assert found.libc == "glibc " + os.confstr("CS_GNU_LIBC_VERSION").removeprefix("glibc ")  # type: ignore[union-attr]
    assert f".{found.soabi}.so" == found.ext_suffixes[0]
    assert found.machine == os.uname().machine
    assert bytes.fromhex(found.magic).endswith(b"\r\n")
    assert json.loads(json.dumps(found.to_json())) == found.to_json()


@pytest.mark.parametrize("how", ["--symlinks", "--copies"])
def test_a_virtual_environment_stands_for_the_interpreter_it_was_made_from(tmp_path: Path, how: str) -> None:
    made = process.run([str(THIS_BASE), "-m", "venv", "--without-pip", how, str(tmp_path / "venv")])
    assert made.returncode == 0, made.stderr
    found = find_interpreter(
        THIS_VERSION, environ={"PATH": str(tmp_path / "venv" / "bin")}, platform=PLATFORM, usual_folders=()
    )
    assert found.path == THIS_BASE


def test_the_python_of_the_flagship_is_found_and_its_remembered_path_gives_the_same() -> None:
    uv = shutil.which("uv")
    try:
        found = find_interpreter("3.12", environ=os.environ, uv=uv, platform=PLATFORM)
    except EnvspecError as error:
        pytest.skip(f"no CPython 3.12 here: {error.message}")
    assert found.version.startswith("3.12.")
    assert found.cache_tag == "cpython-312"
    assert found.path.resolve() == found.path
    nowhere = {"PATH": "", "HOME": ""}
    assert find_interpreter("3.12", environ=nowhere, remembered=found.path, platform=PLATFORM) == found


# -- the order ------------------------------------------------------------------------------------------------------------------------


def test_what_is_remembered_is_asked_first_and_alone(machine: Machine) -> None:
    remembered = machine.python("opt/python3.99")
    machine.python("bin/python3.99")
    uv = machine.script("uv", "exit 9")
    assert machine.find(remembered=remembered, uv=str(uv)).path == remembered
    assert machine.called() == ["opt/python3.99"]


def test_what_is_remembered_and_gone_is_noted_and_the_search_goes_on(machine: Machine) -> None:
    path = machine.python("bin/python3.99")
    assert machine.find(remembered=machine.root / "gone").path == path
    (machine.root / "bin/python3.99").unlink()
    assert machine.rejections(remembered=machine.root / "gone") == {"gone": "was used before and is gone"}


def test_what_is_remembered_and_has_another_version_now_is_not_taken(machine: Machine) -> None:
    remembered = machine.python("opt/python3", version="3.98.1")
    path = machine.python("bin/python3.99")
    assert machine.find(remembered=remembered).path == path


def test_uv_is_asked_without_downloads_before_path(machine: Machine) -> None:
    machine.python("bin/python3.99")
    managed = machine.python("managed/python3.99")
    uv = machine.script("uv", f'echo "$@" > {machine.root}/arguments; echo {managed}')
    assert machine.find(uv=str(uv)).path == managed
    arguments = (machine.root / "arguments").read_text(encoding="utf-8")
    assert arguments == "python find --no-python-downloads --no-project 3.99\n"


def test_uv_that_stumbles_over_a_shim_does_not_end_the_search(machine: Machine) -> None:
    said = "error: Failed to inspect Python interpreter from search path at `shims/python3.99`"
    uv = machine.script("uv", f"echo '{said}' >&2; exit 2")
    machine.script("bin/python3.99", "echo 'pyenv: python3.99: command not found' >&2; exit 127")
    path = machine.python("bin2/python3.99")
    assert machine.find(uv=str(uv)).path == path
    path.unlink()
    assert machine.rejections(uv=str(uv)) == {
        "uv python find": f"rc 2: {said}",
        "bin/python3.99": "does not start: rc 127: pyenv: python3.99: command not found",
    }


def test_names_in_path_are_tried_from_the_most_special_one(machine: Machine) -> None:
    machine.python("bin/python")
    machine.python("bin/python3")
    special = machine.python("bin2/python3.99")
    assert machine.find().path == special
    special.unlink()
    assert machine.find().path.name == "python3"


def test_a_shim_stands_for_the_program_that_it_starts(machine: Machine) -> None:
    real = machine.python("opt/real/bin/python3.99")
    machine.python("bin/python3.99", path=real)
    assert machine.find().path == real


def test_a_shim_whose_program_does_not_start_by_itself_is_rejected(machine: Machine) -> None:
    broken = machine.script("opt/python3.99", "exit 3")
    machine.python("bin/python3.99", path=broken)
    assert list(machine.rejections().values()) == ["does not start: rc 3"]


@pytest.mark.parametrize("by_variable", [True, False])
def test_versions_of_pyenv_are_tried_from_the_newest_patch_level(machine: Machine, by_variable: bool) -> None:  # noqa: FBT001
    root = "pyenv" if by_variable else "home/.pyenv"
    if by_variable:
        machine.environ["PYENV_ROOT"] = str(machine.root / root)
    for patch in ("3.99.9", "3.99.10", "3.99-dev", "3.9.20"):
        machine.python(f"{root}/versions/{patch}/bin/python3.99", version=patch)
    assert machine.find().version == "3.99.10"
    assert machine.find(exact="3.99.9").version == "3.99.9"


def test_usual_folders_and_those_of_uv_come_last(machine: Machine) -> None:
    in_uv = machine.python("data/uv/python/cpython-3.99.2-linux/bin/python3.99")
    machine.environ["XDG_DATA_HOME"] = str(machine.root / "data")
    folders = (str(machine.root / "opt/python*/bin"), "~/.local/bin")
    assert machine.find(usual_folders=folders).path == in_uv
    in_home = machine.python("home/.local/bin/python3.99")
    assert machine.find(usual_folders=folders).path == in_home
    in_opt = machine.python("opt/python-3/bin/python3.99")
    assert machine.find(usual_folders=folders).path == in_opt


def uv_that_installs(machine: Machine) -> str:
    place = machine.root / "uv-python/cpython-3.99.2-linux/bin"
    machine.python("stock/python3.99", path=place / "python3.99")
    install = f"mkdir -p {place}; cp {machine.root}/stock/python3.99 {place}; echo installed >> {machine.calls}"
    return str(
        machine.script(
            "uv", f'case "$2" in install) {install};; dir) echo {place.parents[1]};; find) echo none >&2; exit 2;; esac'
        )
    )


def test_uv_installs_only_where_it_may(machine: Machine) -> None:
    uv = uv_that_installs(machine)
    assert machine.rejections(uv=uv) == {"uv python find": "rc 2: none"}
    assert "installed" not in machine.called()
    assert machine.find(uv=uv, may_install=True).version == "3.99.2"


def test_an_installation_that_fails_is_among_the_reasons(machine: Machine) -> None:
    uv = machine.script("uv", 'echo "no network ($2)" >&2; exit 1')
    reasons = machine.rejections(uv=str(uv), may_install=True)
    assert reasons["uv python install"] == "failed: rc 1: no network (install)"


# -- what will not do -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"version": "3.98.4"}, "is version 3.98.4, wanted 3.99"),
        ({"version": "3.990.1"}, "is version 3.990.1, wanted 3.99"),
        ({"version": "3.99.0rc1"}, "is the pre-release 3.99.0rc1"),
        ({"implementation": "pypy"}, "is pypy, not CPython"),
        ({"bits": 32}, "is a 32-bit build"),
        ({"abiflags": "t"}, "is a free-threaded build: it has another ABI than the wheels"),
        (
            {"abiflags": "d"},
            "is a build with the ABI flags `d` (d: debug): it has another ABI than the wheels",
        ),
        (
            {"libc": "", "soabi": "cpython-399-x86_64-linux-musl"},
            "is built on another C library than glibc (its ABI is `cpython-399-x86_64-linux-musl`)",
        ),
        ({"machine": "sparc64"}, f"is for sparc64, wanted {os.uname().machine}"),
    ],
)
def test_an_interpreter_that_will_not_do_is_rejected_with_the_reason(
    machine: Machine, claims: dict[str, Any], reason: str
) -> None:
    machine.python("bin/python3.99", **claims)
    assert machine.rejections() == {"bin/python3.99": reason}


def test_an_exact_version_is_met_exactly(machine: Machine) -> None:
    machine.python("bin/python3.99")
    assert machine.find(exact="3.99.2").version == "3.99.2"
    assert machine.rejections(exact="3.99.3") == {"bin/python3.99": "is version 3.99.2, wanted exactly 3.99.3"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo Unknown option: -I >&2; exit 2", "does not start: rc 2: Unknown option: -I"),
        ("exit 0", "does not start: rc 0"),
        ("echo envspec-interpreter not json", "does not start: rc 0: envspec-interpreter not json"),
        ('echo "envspec-interpreter {}"', "does not start: rc 0: envspec-interpreter {}"),
        ("kill -SEGV $$", "does not start: rc -11"),
    ],
)
def test_a_program_that_does_not_answer_is_rejected_with_the_reason(machine: Machine, body: str, reason: str) -> None:
    machine.script("bin/python3", body)
    assert machine.rejections() == {"bin/python3": reason}


def test_a_program_that_hangs_is_ended_and_the_search_goes_on(machine: Machine) -> None:
    machine.script("bin/python3.99", "sleep 600")
    machine.python("bin/python3", version="3.98.0")
    assert machine.rejections(timeout_s=1.0) == {
        "bin/python3.99": "does not answer within 1 s",
        "bin/python3": "is version 3.98.0, wanted 3.99",
    }


def test_a_file_that_is_no_program_is_rejected(machine: Machine) -> None:
    (machine.root / "bin/python3").write_bytes(b"\x7fELF")
    assert "Permission denied" in machine.rejections()["bin/python3"]


def test_two_names_of_one_file_are_asked_only_once_a_name(machine: Machine) -> None:
    machine.python("bin/python3", version="3.98.0")
    (machine.root / "bin2/python3").symlink_to(machine.root / "bin/python3")
    (machine.root / "bin2/python").symlink_to(machine.root / "bin/python3")
    assert set(machine.rejections()) == {"bin/python3", "bin2/python"}


def test_where_nothing_is_found_the_error_says_so_and_what_to_do(machine: Machine) -> None:
    with pytest.raises(EnvspecError) as caught:
        machine.find("3.99", "3.99.1", uv=str(machine.script("uv", "exit 2")))
    assert caught.value.message == f"no CPython 3.99.1 for {PLATFORM} was found on this machine"
    assert caught.value.hint == (
        "install one with `uv python install 3.99.1` or `pyenv install 3.99.1` or the distribution's package "
        "`python3.99`, or put one first in PATH"
    )
