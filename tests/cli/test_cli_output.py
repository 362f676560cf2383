"""What is printed: one JSON object, data and talk apart, exit codes, and no traceback whatever the input is."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envspec import __version__
from tests.support.projects import Project, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = {"host", "env", "site", "path", "generation"}

# Verb -> keys of the object, keys of its host's record.
KEYS: dict[str, tuple[set[str], set[str]]] = {
    "lock": ({"lock", "env", "site", "written", "findings"}, set()),
    "lock --check": ({"lock", "env", "site", "written", "findings"}, set()),
    "build": ({"hosts"}, HOST | {"built", "probes", "seconds"}),
    "verify": ({"hosts"}, HOST | {"built", "probes", "seconds", "drift"}),
    "verify --deep": ({"hosts"}, HOST | {"built", "probes", "seconds", "drift"}),
    "status": ({"hosts"}, HOST | {"drift"}),
    "generations": ({"generations"}, set()),
    "gc": ({"paths", "freed_bytes"}, set()),
}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("verb", KEYS)
def test_json_is_one_object_with_the_promised_keys(built: Project, verb: str) -> None:
    keys, host = KEYS[verb]
    ran = built.good(*verb.split(), "--json")
    value = ran.json()
    assert set(value) >= keys | {"version"}
    if host:
        assert set(ran.host()) >= host
    assert ran.stderr == ""
    assert "\x1b" not in ran.stdout


def test_json_of_rollback(built: Project) -> None:
    built.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 7")
    built.good("lock")
    built.good("build")
    (generation,) = built.good("rollback", "--json").json()["generations"]
    assert (generation["number"], generation["active"]) == (1, True)


def test_json_of_a_probe_has_id_result_and_reason(built: Project) -> None:
    (probe,) = built.good("build", "--json").host()["probes"]
    assert probe == {"id": "imports", "result": "pass", "reason": ""}


def test_json_of_a_refused_lock_has_the_findings_and_no_lock(project: Project) -> None:
    project.wheel("beta", "1.0", data={"data/pyvenv.cfg": "evil\n"})
    project.write_spec({"beta": "*"})
    ran = project.run("lock", "--json")
    assert ran.code == 1
    value = ran.json()
    assert (value["written"], value["env"], value["site"]) == (False, None, None)
    (finding,) = [finding for finding in value["findings"] if finding["severity"] == "error"]
    assert finding["check"] == "reserved-path"
    assert set(finding) >= {"check", "severity", "subject", "message", "evidence", "hint"}


def test_json_of_a_written_lock_says_so_and_has_the_findings(project: Project) -> None:
    project.wheel("beta", "1.0", {"beta/__init__.py": "", "beta.pth": "import os\n"})
    project.write_spec({"beta": "*"})
    value = project.good("lock", "--json").json()
    assert value["written"] is True
    assert "startup-hook" in {finding["check"] for finding in value["findings"]}
    assert project.good("lock", "--json").json()["written"] is False


def test_json_of_a_stale_lock_has_the_reasons(locked: Project) -> None:
    locked.spec_path.write_text(locked.spec_path.read_text().replace("==1.0", ">=1"))
    ran = locked.run("lock", "--check", "--json")
    assert ran.code == 1
    value = ran.json()
    assert value["current"] is False
    assert len(value["reasons"]) == 1


def test_json_of_status_before_the_first_build(locked: Project) -> None:
    ran = locked.run("status", "--json")
    assert ran.code == 1
    host = ran.host()
    assert (host["env"], host["generation"], host["drift"]) == (None, None, [])


@pytest.mark.parametrize("verb", ["lock", "lock --check", "build", "status", "verify", "generations", "rollback"])
def test_json_of_an_error_is_one_object_with_every_problem(project: Project, verb: str) -> None:
    project.write_spec({"beta": "1.0"}, more="[verfy]")
    ran = project.run(*verb.split(), "--json")
    assert ran.code == 2
    error = ran.json()["error"]
    assert set(error) >= {"message", "input", "hint", "problems"}
    assert error["input"] == "demo.toml"
    assert len(error["problems"]) == 2
    assert "error: " in ran.stderr


def test_json_of_a_usage_error(project: Project) -> None:
    ran = project.run("lock", "--json", "--chek")
    assert ran.code == 2
    assert "--check" in ran.json()["error"]["message"]


# Usage.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lok"], '"lock"'),
        (["lock", "--chek"], "--check"),
        (["lock", "--upgrade"], "--upgrade"),
        (["lock", "extra"], "extra"),
        (["rollback", "x"], "NUMBER"),
        (["rollback", "1", "2"], "2"),
        (["gc", "--keep", "-1"], "--keep"),
        (["gc", "--keep", "many"], "--keep"),
        (["run"], "envspec run --"),
        (["run", "python", "-c", "x"], "envspec run --"),
        (["build", "--no-repair"], "--no-repair"),
        (["lock", "--json=maybe"], "--json"),
    ],
    ids=" ".join,
)
def test_usage_error_ends_with_2_and_says_what_there_is(project: Project, arguments: list[str], said: str) -> None:
    ran = project.run(*arguments)
    assert ran.code == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("error: ")
    assert said in ran.stderr
    assert "hint: " in ran.stderr
    assert not project.store.exists()


def test_version_is_told(project: Project) -> None:
    assert project.good("--version").stdout == f"{__version__}\n"


def test_empty_variable_for_the_store_is_no_store(locked: Project) -> None:
    ran = locked.run("status", ENVSPEC_STORE="")
    assert str(locked.spec_folder) not in ran.stdout
    assert names_in(locked.spec_folder) == ["demo.lock", "demo.toml", "overlays"]


@pytest.mark.parametrize("place", ["a:b", "a\nb", b"a\xff"], ids=repr)
def test_store_at_a_path_that_cannot_be_written_down_is_refused(locked: Project, place: str | bytes) -> None:
    ran = locked.run("build", "--store", os.fsdecode(place))
    assert ran.code == 2
    assert "the path of the store" in ran.stderr
    assert names_in(locked.spec_folder) == ["demo.lock", "demo.toml", "overlays"]


# Streams.


def test_quiet_build_says_nothing_but_its_result(locked: Project) -> None:
    ran = locked.good("build", "--quiet")
    assert ran.stderr == ""
    assert "env " in ran.stdout


def on_a_terminal(project: Project, *arguments: str, **changes: str | None) -> str:
    """What a person sees on a terminal's stderr."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        with subprocess.Popen(
            [sys.executable, "-m", "envspec", *arguments],
            cwd=project.spec_folder,
            env=project.environ(**changes),
            stdout=subprocess.PIPE,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            seen = b""
            while True:
                try:
                    block = screen.read(4096)
                except OSError:  # how Linux says that nobody has the terminal any more
                    break
                if not block:
                    break
                seen += block
            process.communicate()
        assert process.returncode is not None
        return seen.decode(errors="replace")


def test_progress_shows_on_a_terminal_and_not_when_quiet(locked: Project) -> None:
    shutil.rmtree(locked.store)
    seen = on_a_terminal(locked, "build", TERM="xterm")
    assert "importing alpha, beta" in seen
    assert "Traceback" not in seen
    locked.good("build")
    locked.write_patch("beta/__init__.py", "VALUE = 1", "VALUE = 7")
    assert on_a_terminal(locked, "lock", "--quiet", TERM="xterm") == ""
    assert on_a_terminal(locked, "build", "--quiet", TERM="xterm") == ""
    locked.good("status")


@pytest.mark.parametrize("colour", [True, False])
def test_errors_are_coloured_only_on_a_terminal_that_wants_it(project: Project, *, colour: bool) -> None:
    seen = on_a_terminal(project, "lock", TERM="xterm", NO_COLOR=None if colour else "1")
    assert ("\x1b[31" in seen) == colour
    assert "error" in seen
    assert "\x1b" not in project.run("lock").stderr


def test_reader_that_goes_away_is_no_error_of_ours(built: Project) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "envspec", "status"],
        cwd=built.spec_folder,
        env=built.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert errors == b""


def test_output_that_finds_no_room_is_an_error(built: Project) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "envspec", "status"],
            cwd=built.spec_folder,
            env=built.environ(),
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: No space left on device")
    assert "Exception ignored" not in done.stderr


def test_paths_beyond_ascii_are_printed_in_any_language(built: Project) -> None:
    store = built.folder / "stüre"
    built.good("build", "--store", store)
    for language in ("C", "POSIX", "C.UTF-8"):
        for utf8 in ("0", "1"):
            ran = built.run("status", "--store", store, LC_ALL=language, PYTHONUTF8=utf8, PYTHONCOERCECLOCALE=utf8)
            assert "bug" not in ran.stderr
            assert ran.code == 0 or "not UTF-8" in ran.stderr


# Inputs that are none.


def deep(text: str, end: str = "") -> bytes:
    return (b"envspec = 1\nx = " + text.encode() * 100_000) + end.encode() * 100_000


GARBAGE: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 4,
    "zeros": bytes(4096),
    "utf-16": "envspec = 1\n".encode("utf-16"),
    "latin-1": b'envspec = 1\nname = "d\xe9mo"\n',
    "byte order mark": b"\xef\xbb\xbfenvspec = 1\n",
    "no TOML": b"this is no TOML at all\n",
    "JSON": b'{"envspec": 1}',
    "a lock": b"lock = 1\n",
    "nested lists": deep("[", "]"),
    "open lists": deep("["),
    "nested tables": deep("{a=", "}"),
    "dotted keys": b"envspec = 1\n" + b"a." * 100_000 + b"b = 1\n",
    "dotted table": b"envspec = 1\n[" + b"a." * 100_000 + b"b]\n",
    "one long line": b'envspec = 1\nname = "' + b"a" * 5_000_000 + b'"\n',
    "big number": b"envspec = " + b"9" * 10_000 + b"\n",
    "no number": b"envspec = nan\n",
    "wrong types": b"envspec = 1\nname = 7\npython = []\ntarget = 1.5\npackages = 'x'\nverify = true\nwaivers = {}\nhosts = [1]\n",
    "old date": b"envspec = 1\nsnapshot = 0001-01-01T00:00:00+23:59\n",
    "control characters": b'envspec = 1\nname = "a\\u0000\\u001b[31m"\n',
    "format 2": b"envspec = 2\n",
    "same key twice": b"envspec = 1\nenvspec = 1\n",
    "carriage returns": b"envspec = 1\r\rname = 'x'\r",
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_for_a_spec_is_told(project: Project, garbage: str) -> None:
    project.spec_path.write_bytes(GARBAGE[garbage])
    ran = project.run("lock", "--spec", project.spec_path)
    assert_told(ran.code, ran.stderr, "demo.toml")
    assert names_in(project.spec_folder) == ["demo.toml"]
    assert not project.store.exists()


@pytest.mark.parametrize("verb", ["lock", "build"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_for_a_lock_is_told(locked: Project, garbage: str, verb: str) -> None:
    content = GARBAGE[garbage].replace(b"envspec = 1", b"lock = 1")
    locked.lock_path.write_bytes(content)
    ran = locked.run(verb)
    assert_told(ran.code, ran.stderr, "demo.lock")
    assert locked.lock_path.read_bytes() == content
    assert locked.environments() == []


def assert_told(code: int, errors: str, name: str) -> None:
    assert code == 2
    assert errors.startswith("error: ")
    assert name in errors
    assert "bug in envspec" not in errors
    assert len(errors) < 20_000
    assert "\x1b" not in errors
    assert "\x00" not in errors


def a_folder(path: Path) -> None:
    path.mkdir()


def a_loop(path: Path) -> None:
    path.symlink_to(path)


def nothing(path: Path) -> None:
    del path


@pytest.mark.parametrize("make", [a_folder, a_loop, nothing], ids=lambda make: make.__name__)
def test_thing_that_is_no_file_for_a_spec_is_told(project: Project, make: Callable[[Path], None]) -> None:
    place = project.spec_folder / "odd.toml"
    make(place)
    ran = project.run("lock", "--spec", place)
    assert_told(ran.code, ran.stderr, "odd.toml")


@pytest.mark.parametrize("make", [a_folder, a_loop], ids=lambda make: make.__name__)
@pytest.mark.parametrize("verb", ["lock", "build", "status"])
def test_thing_that_is_no_file_for_a_lock_is_told(locked: Project, make: Callable[[Path], None], verb: str) -> None:
    locked.lock_path.unlink()
    make(locked.lock_path)
    ran = locked.run(verb)
    assert_told(ran.code, ran.stderr, "demo.lock")


@pytest.mark.parametrize(
    ("series", "patch"),
    [
        (b"", b""),
        (b"\xff\xfe", b""),
        (b"../../etc/passwd\n", b""),
        (b"/etc/passwd\n", b""),
        (b"0001-change.patch\n0001-change.patch\n", b"x"),
        (b"0001-change.patch\n", b""),
        (b"0001-change.patch\n", bytes(range(256))),
        (b"0001-change.patch\n", b"--- a/../../x\n+++ b/../../x\n@@ -0,0 +1 @@\n+x\n"),
        (b"0001-change.patch\n", b"--- a/beta/__init__.py\n+++ b/beta/__init__.py\n@@ -1,999999999 +1 @@\n-x\n+y\n"),
        (b"0001-change.patch\n", b"GIT binary patch\nliteral 10\n"),
    ],
    ids=range(10),
)
def test_garbage_for_patches_is_told(locked: Project, series: bytes, patch: bytes) -> None:
    overlays = locked.spec_folder / "overlays"
    (overlays / "series").write_bytes(series)
    (overlays / "0001-change.patch").write_bytes(patch)
    before = snapshot_of(locked.spec_folder)
    for verb in ("lock", "build"):
        ran = locked.run(verb)
        assert ran.code in {1, 2}
        assert ran.stderr.startswith("error: ")
        assert "bug in envspec" not in ran.stderr
    assert snapshot_of(locked.spec_folder) == before
    assert locked.environments() == []


@pytest.mark.parametrize(
    "garbage",
    [b"", b"no archive", b"PK\x05\x06" + bytes(18), bytes(1000), b"PK\x03\x04" + bytes(range(256)) * 9],
    ids=["empty", "text", "no member", "zeros", "cut off"],
)
@pytest.mark.parametrize("metadata", [True, False])
def test_garbage_for_a_wheel_is_told(project: Project, garbage: bytes, *, metadata: bool) -> None:
    assert project.index is not None
    project.index.metadata = metadata
    (project.wheels / "beta-1.0-py3-none-any.whl").write_bytes(garbage)
    if metadata:
        project.index.metadata = False  # such a wheel has none to serve
        project.index.form = "html"
    project.write_spec({"beta": "*"})
    ran = project.run("lock")
    assert ran.code in {1, 2}
    assert ran.stderr.startswith(("error: ", "warning: "))
    assert "bug in envspec" not in ran.stderr
    assert not project.lock_path.exists()
    assert project.leftovers() == []
