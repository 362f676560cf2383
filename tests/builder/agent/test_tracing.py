"""Traced runs: what was raised on the way, how it ended, and that nothing which is run gets out of hand or makes us believe it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.agent.interpreter import find_interpreter
from builder.tracing import read_traced, trace
from envspec.errors import EnvspecError
from envspec.traced import traced_from_json, traced_to_json
from tests.support.agents import local_session
from tests.support.projects import base_python

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envspec.traced import Traced

OURS = "these tests'"


def find(version: str) -> Path:
    if version == OURS:
        return base_python()
    try:
        return Path(find_interpreter(version, environ=os.environ).path)
    except EnvspecError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module", params=[OURS, "3.12"])
def any_python(request: pytest.FixtureRequest) -> Path:
    """An interpreter: those from 3.12 on tell of exceptions in another way."""
    return find(request.param)


@pytest.fixture
def python() -> Path:
    return base_python()


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def run(
    python: Path, folder: Path, files: Mapping[str, str], target: str = "app", *, timeout_s: float = 60.0, **more: Any
) -> Traced:
    write(folder, files)
    environ = {"PATH": os.defpath, "HOME": os.fspath(folder), **more.pop("environ", {})}
    return trace(target, os.fspath(python), environ=environ, cwd=os.fspath(folder), timeout_s=timeout_s, **more)


def said(traced: Traced) -> list[tuple[str, str]]:
    return [(each.type, each.message) for each in traced.chain]


def swallowed(traced: Traced) -> list[tuple[str, str]]:
    return [(each.type, each.message) for each in traced.swallowed]


def test_good_import_ends_well_and_tells_which_modules_came_from_where(any_python: Path, tmp_path: Path) -> None:
    traced = run(any_python, tmp_path, {"app/__init__.py": "import helper\n", "helper.py": "", "unused.py": ""})
    assert (traced.ending, traced.detail, traced.chain, traced.swallowed) == ("ok", "", (), ())
    files = dict(traced.modules)
    assert files["app"] == os.fspath(tmp_path / "app/__init__.py")
    assert files["helper"] == os.fspath(tmp_path / "helper.py")
    assert "unused" not in files
    assert any("libc.so" in path for path in traced.mapped)
    assert traced_from_json(traced_to_json(traced)) == traced
    assert not [*tmp_path.rglob("*.pyc")]


@pytest.mark.parametrize("version", [OURS, "3.8", "3.9", "3.10", "3.12", "3.13", "3.14"])
def test_whole_chain_is_told_from_the_first_exception_to_the_last(version: str, tmp_path: Path) -> None:
    traced = run(
        find(version),
        tmp_path,
        {
            "app.py": "import middle\n",
            "middle.py": "try:\n    import deep\nexcept OSError as error:\n    raise RuntimeError('install it') from error\n",
            "deep.py": "def f():\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        raise OSError('broken')\nf()\n",
        },
    )
    assert traced.ending == "exception"
    assert said(traced) == [
        ("ZeroDivisionError", "division by zero"),
        ("OSError", "broken"),
        ("RuntimeError", "install it"),
    ]
    assert [each.relation for each in traced.chain] == ["context", "cause", ""]
    assert traced.chain[1].importing == ("app", "middle", "deep")
    assert [(frame.module, frame.line, frame.function) for frame in traced.chain[1].frames] == [
        ("app", 1, "<module>"),
        ("middle", 2, "<module>"),
        ("deep", 6, "<module>"),
        ("deep", 5, "f"),
    ]
    assert traced.swallowed == ()


@pytest.mark.parametrize(
    ("code", "chain"),
    [
        ("try:\n    1 / 0\nexcept Exception:\n    raise KeyError('k') from None\n", ["ZeroDivisionError", "KeyError"]),
        ("a = ValueError('a')\nraise TypeError('b') from a\n", ["ValueError", "TypeError"]),
        ("a = ValueError('a')\nb = TypeError('b')\na.__cause__, b.__cause__ = b, a\nraise a\n", ["TypeError", "ValueError"]),
        ("class Odd(Exception):\n    def __str__(self):\n        raise Exception\nraise Odd\n", ["app.Odd"]),
        ("raise ValueError('\\ud800\\x1b[2J\\U0001f600\"')\n", ["ValueError"]),
    ],
)  # fmt: skip
def test_odd_chains_are_told(any_python: Path, tmp_path: Path, code: str, chain: list[str]) -> None:
    traced = run(any_python, tmp_path, {"app.py": code})
    assert [each.type for each in traced.chain] == chain
    assert "\x1b" not in traced.chain[-1].message


def test_members_of_a_group_are_told(tmp_path: Path, python: Path) -> None:
    traced = run(python, tmp_path, {"app.py": "raise ExceptionGroup('two', [ValueError('a'), OSError('b')])\n"})
    assert said(traced) == [("ValueError", "a"), ("OSError", "b"), ("ExceptionGroup", "two (2 sub-exceptions)")]
    assert [each.relation for each in traced.chain] == ["member", "member", ""]


def test_exception_that_a_package_caught_and_went_on_from_is_told(any_python: Path, tmp_path: Path) -> None:
    library = tmp_path / "_C.so"
    library.write_bytes(b"\x7fELF")
    traced = run(
        any_python,
        tmp_path,
        {
            "app/__init__.py": "from app import extension, ops\n",
            "app/extension.py": f"import ctypes\ntry:\n    ctypes.CDLL({os.fspath(library)!r})\nexcept (ImportError, OSError):\n    pass\n",
            "app/ops.py": "raise RuntimeError('operator app::nms does not exist')\n",
        },
    )
    assert said(traced) == [("RuntimeError", "operator app::nms does not exist")]
    (error,) = traced.swallowed
    assert (error.type, error.path, error.importing) == ("OSError", os.fspath(library), ("app", "app.extension"))
    assert error.message.startswith(f"{library}: ")


def test_swallowed_failure_of_a_whole_module_is_told_once_with_its_place(any_python: Path, tmp_path: Path) -> None:
    traced = run(
        any_python,
        tmp_path,
        {
            "app.py": "for _ in range(3):\n    try:\n        import first\n    except Exception:\n        pass\n",
            "first.py": "import second\n",
            "second.py": "raise ValueError('bad table')\n",
        },
    )
    assert traced.ending == "ok"
    (error,) = traced.swallowed
    assert (error.type, error.message, error.importing) == ("ValueError", "bad table", ("app", "first", "second"))


def test_extension_that_cannot_be_loaded_is_told_with_its_file(any_python: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.abi3.so").write_bytes(b"\x7fELF\x02\x01")
    traced = run(any_python, tmp_path, {"app.py": "try:\n    import broken\nexcept ImportError:\n    broken = None\n"})
    (error,) = traced.swallowed
    assert (error.type, error.name) == ("ImportError", "broken")
    assert error.path == os.fspath(tmp_path / "broken.abi3.so")
    assert error.importing == ("app", "broken")


def test_missing_module_that_took_its_importer_along_outlives_the_many_optional_ones(
    any_python: Path, tmp_path: Path
) -> None:
    optional = "".join(f"try:\n    import absent_{each}\nexcept ImportError:\n    pass\n" for each in range(500))
    traced = run(
        any_python,
        tmp_path,
        {
            "app.py": f"{optional}try:\n    import needy\nexcept ImportError:\n    pass\nraise SystemError('no')\n",
            "needy.py": "import absent_1000\n",
        },
    )
    assert said(traced) == [("SystemError", "no")]
    assert len(traced.swallowed) == 200
    assert [each.importing[-1] for each in traced.swallowed if each.name == "absent_1000"] == ["needy"]


def test_module_that_is_missing_is_named(any_python: Path, tmp_path: Path) -> None:
    traced = run(any_python, tmp_path, {"app.py": "import helper\n", "helper.py": "import pybase64\n"})
    (error,) = traced.chain
    assert (error.type, error.name) == ("ModuleNotFoundError", "pybase64")
    assert error.importing == ("app", "helper")
    assert traced.swallowed == ()


def test_import_cycle_is_told_with_both_modules(any_python: Path, tmp_path: Path) -> None:
    traced = run(any_python, tmp_path, {"app.py": "from b import x\n", "b.py": "from app import y\nx = 1\n"})
    (error,) = traced.chain
    assert (error.type, error.name) == ("ImportError", "app")
    assert error.importing == ("app", "b")
    assert {name for name, _ in traced.modules}.isdisjoint({"app", "b"})


def test_syntax_error_names_file_and_line(any_python: Path, tmp_path: Path) -> None:
    traced = run(any_python, tmp_path, {"app.py": "import edited\n", "edited.py": "x = 1\ndef f(:\n"})
    (error,) = traced.chain
    assert (error.type, error.path) == ("SyntaxError", os.fspath(tmp_path / "edited.py"))
    assert error.frames[-1][:2] == (os.fspath(tmp_path / "edited.py"), 2)
    assert error.importing[0] == "app"


def test_unreadable_module_names_its_file(any_python: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_bytes(b"x = '\xff'\n")
    traced = run(any_python, tmp_path, {"app.py": "import bad\n"})
    (error,) = traced.chain
    assert error.type == "SyntaxError"
    assert error.path == os.fspath(tmp_path / "bad.py")


def test_module_that_shadows_the_standard_library_is_seen_and_does_not_stop_the_trace(
    any_python: Path, tmp_path: Path
) -> None:
    files = dict.fromkeys(("json.py", "ctypes.py", "colorsys.py"), "raise RuntimeError('stray')\n")
    traced = run(any_python, tmp_path, {**files, "app.py": "import colorsys\n"})
    assert said(traced) == [("RuntimeError", "stray")]
    assert traced.chain[0].frames[-1].file == os.fspath(tmp_path / "colorsys.py")


@pytest.mark.parametrize(
    ("code", "ending", "detail"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "crash", "SIGSEGV"),
        ("import os\nos.abort()\n", "crash", "SIGABRT"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "crash", "SIGKILL"),
        ("import os\nos._exit(3)\n", "exit", "rc 3"),
        ("import os\nos._exit(0)\n", "exit", "rc 0"),
        ("import sys\nsys.exit(4)\n", "exit", "rc 4"),
        ("import sys\nsys.exit('no licence')\n", "exit", "rc 1"),
        ("raise KeyboardInterrupt\n", "exception", ""),
    ],
)
def test_process_that_ends_on_its_own_says_how(
    any_python: Path, tmp_path: Path, code: str, ending: str, detail: str
) -> None:
    traced = run(any_python, tmp_path, {"app.py": "import early\nimport last\n", "early.py": "", "last.py": code})
    assert (traced.ending, traced.detail) == (ending, detail)
    assert traced.failed


def test_crash_is_told_with_its_place_and_what_was_caught_before(any_python: Path, tmp_path: Path) -> None:
    traced = run(
        any_python,
        tmp_path,
        {
            "app.py": "try:\n    import lame\nexcept ValueError:\n    pass\nimport deadly\n",
            "lame.py": "raise ValueError('x')\n",
            "deadly.py": "import os, signal\ndef f():\n    os.kill(os.getpid(), signal.SIGSEGV)\nf()\n",
        },
    )
    (crash,) = traced.chain
    assert (crash.type, traced.detail) == ("SIGSEGV", "SIGSEGV")
    assert [(Path(frame.file).name, frame.line) for frame in crash.frames] == [
        ("app.py", 5),
        ("deadly.py", 4),
        ("deadly.py", 3),
    ]
    assert swallowed(traced) == [("ValueError", "x")]
    assert any(line.startswith("Fatal Python error: Segmentation fault") for line in traced.messages)


def test_hang_ends_with_its_place_and_what_was_caught_before(any_python: Path, tmp_path: Path) -> None:
    code = "import subprocess, threading, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    traced = run(
        any_python,
        tmp_path,
        {"app.py": f"try:\n    import lame\nexcept ValueError:\n    pass\n{code}threading.Event().wait()\n", "lame.py": "raise ValueError\n"},
        timeout_s=1.0,
    )  # fmt: skip
    assert (traced.ending, traced.detail) == ("timeout", "no end after 1 s")
    assert swallowed(traced) == [("ValueError", "")]
    assert (Path(traced.chain[0].frames[0].file).name, traced.chain[0].frames[0].line) == ("app.py", 7)
    assert any("libc.so" in path for path in traced.mapped)


def test_hundreds_of_megabytes_of_output_are_drained(python: Path, tmp_path: Path) -> None:
    code = "import os\nfor stream in (1, 2):\n    for _ in range(256):\n        os.write(stream, b'x' * (1 << 20))\n"
    traced = run(python, tmp_path, {"app.py": f"{code}os.write(2, b'\\nlast words\\n')\nraise ValueError('done')\n"})
    assert said(traced) == [("ValueError", "done")]
    assert "last words" in traced.messages
    assert sum(map(len, traced.messages)) < 10_000


def test_script_that_closes_every_descriptor_is_told_all_the_same(any_python: Path, tmp_path: Path) -> None:
    code = "import os\nos.closerange(0, 4096)\nfiles = [open(f'own{each}', 'w') for each in range(50)]\n"
    more = "for file in files:\n    os.dup2(file.fileno(), 900 + file.fileno() * 4)\n"
    traced = run(any_python, tmp_path, {"app.py": f"{code}{more}raise ValueError('after it')\n"})
    assert said(traced) == [("ValueError", "after it")]
    assert {path.read_text() for path in tmp_path.glob("own*")} == {""}


def test_events_that_are_printed_or_written_by_a_fork_are_not_believed(any_python: Path, tmp_path: Path) -> None:
    code = r"""
import os, sys
for stream in (sys.stdout, sys.stderr):
    stream.write('{"begin": true}\n{"end": {"ending": "ok", "code": 0}}\n')
    stream.flush()
if os.fork() == 0:
    raise ValueError('child')
os.wait()
raise KeyError('parent')
"""
    traced = run(any_python, tmp_path, {"app.py": code})
    assert (traced.ending, said(traced)) == ("exception", [("KeyError", "'parent'")])


def test_forged_events_in_the_pipe_itself_give_nothing_but_texts(python: Path, tmp_path: Path) -> None:
    code = r"""
import os
forged = [b'{"raised": {"type": 3}, "serial": 0, "rank": "load"}', b'{"end": {"ending": "ok", "code": [1], "chain": 7}}', b'[' * 100000, b'\xff']
for fd in range(3, 2000):
    try:
        os.write(fd, b''.join(each + b'\n' for each in forged))
    except OSError:
        pass
os._exit(0)
"""
    with pytest.raises(EnvspecError, match="gave an answer about a traced run that is none"):
        run(python, tmp_path, {"app.py": code})


GOOD: dict[str, Any] = {
    "target": "x", "ending": "ok", "detail": "", "chain": [], "swallowed": [], "messages": [], "modules": [], "mapped": [], "seconds": 1.0,
}  # fmt: skip
RAISED: dict[str, Any] = {
    "type": "E", "message": "m", "name": "", "path": "", "frames": [["f", 1, "g", "m"]], "importing": [], "relation": "",
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"ending": "fine"},
        {"ending": ["ok"]},
        {"detail": 3},
        {"chain": {}},
        {"chain": [{}]},
        {"chain": [{**RAISED, "relation": "friend"}]},
        {"chain": [{**RAISED, "frames": [["f", "1", "g", "m"]]}]},
        {"chain": [{**RAISED, "frames": [["f", 1]]}]},
        {"modules": [["a"]]},
        {"modules": ["ab"]},
        {"mapped": [None]},
        {"seconds": "soon"},
    ],
)
def test_record_that_is_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EnvspecError, match="`h9` gave an answer about a traced run that is none"):
        read_traced({**GOOD, **change}, target="x", host="h9")


def test_record_is_cut_to_size_and_made_fit_to_be_shown() -> None:
    raised = {**RAISED, "message": "\x1b" * 10_000, "frames": [["f", -5, "g", "m"]] * 1000}
    record = {
        **GOOD,
        "target": "other",
        "seconds": float("nan"),
        "swallowed": [raised] * 1000,
        "messages": ["\r" * 5000] * 1000,
    }
    traced = read_traced(record, target="x", host="h9")
    assert (traced.target, traced.seconds, len(traced.swallowed), len(traced.messages)) == ("x", 0.0, 200, 100)
    assert len(traced.swallowed[0].frames) == 101
    assert traced.swallowed[0].frames[0].line == 0
    assert set(traced.swallowed[0].message) <= set("\\x1b")
    assert len(traced.swallowed[0].message) <= 16_000


def test_script_is_run_as_python_would_run_it(any_python: Path, tmp_path: Path) -> None:
    files = {
        "tools/tool.py": "import sys, beside\nassert __name__ == '__main__' and __file__ == sys.argv[0]\nassert sys.argv[1:] == ['-x', 'y']\n",
        "tools/beside.py": "import __main__\nassert __main__.__file__.endswith('tool.py')\n",
    }
    assert run(any_python, tmp_path, files, "tools/tool.py", arguments=("-x", "y")).ending == "ok"


@pytest.mark.parametrize(
    ("code", "ending", "detail"),
    [
        ("import sys\nsys.exit()\n", "ok", ""),
        ("import sys\nsys.exit(2)\n", "exit", "rc 2"),
        ("raise OSError('x')\n", "exception", ""),
        ("import atexit, os\natexit.register(os.abort)\n", "crash", "SIGABRT while the interpreter ended"),
    ],
)
def test_script_tells_how_it_ended(any_python: Path, tmp_path: Path, code: str, ending: str, detail: str) -> None:
    traced = run(any_python, tmp_path, {"tool.py": code}, "./tool.py")
    assert (traced.ending, traced.detail) == (ending, detail)


@pytest.mark.parametrize("target", ["a-b", "a..b", "", "a b", "a;b", "-c"])
def test_target_that_is_no_module_is_refused_before_anything_is_run(python: Path, tmp_path: Path, target: str) -> None:
    with pytest.raises(EnvspecError, match="is not the name of a module"):
        run(python, tmp_path, {}, target)


def test_script_that_is_not_there_is_refused(python: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvspecError, match=r"the script `\./none\.py` is not there"):
        run(python, tmp_path, {}, "./none.py")


def test_venv_without_an_interpreter_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    assert run(tmp_path, tmp_path, {}).detail == f"`{tmp_path}` has no `bin/python`"
    (tmp_path / "bin/python").symlink_to("/moved/away/python3.12")
    traced = run(tmp_path, tmp_path, {})
    assert (traced.ending, traced.detail) == (
        "not started",
        f"`{tmp_path}/bin/python` leads to `/moved/away/python3.12`, which is not there",
    )


def test_interpreter_that_does_not_start_says_so(tmp_path: Path) -> None:
    write(tmp_path, {"bin/python": "#!/bin/sh\necho 'cannot find the encodings' >&2\nexit 1\n"})
    (tmp_path / "bin/python").chmod(0o755)
    traced = run(tmp_path, tmp_path, {})
    assert traced.detail == "the interpreter ended with rc 1: cannot find the encodings"
    write(tmp_path, {"bin/python": "#!/nowhere/python\n"})
    assert run(tmp_path, tmp_path, {}).ending == "not started"


def test_environment_is_the_users_own_unless_it_is_asked_to_be_clean(python: Path, tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir()
    files = {"app.py": "import only_there\n", "extra/only_there.py": ""}
    environ = {"PYTHONPATH": os.fspath(tmp_path / "extra")}
    assert run(python, tmp_path, files, environ=environ).ending == "ok"
    assert run(python, tmp_path, files, environ=environ, clean=True).ending == "exception"


def test_preload_that_cannot_be_loaded_is_among_the_messages(python: Path, tmp_path: Path) -> None:
    traced = run(python, tmp_path, {"app.py": ""}, environ={"LD_PRELOAD": "/nowhere/libfoo.so"})
    assert any("/nowhere/libfoo.so" in line and "LD_PRELOAD" in line for line in traced.messages)


@pytest.mark.skipif(sys.platform != "linux", reason="the agent is for Linux")
def test_agent_runs_it_and_leaves_nothing(python: Path, tmp_path: Path) -> None:
    write(tmp_path, {"app.py": "raise ValueError('there')\n"})
    before = sorted(tmp_path.rglob("*"))
    with local_session(tmp_path / "store") as session:
        traced = trace("app", os.fspath(python), environ={}, session=session, cwd=os.fspath(tmp_path))
        assert said(traced) == [("ValueError", "there")]
        with pytest.raises(EnvspecError, match="is not the name of a module"):
            trace("a-b", os.fspath(python), environ={}, session=session)
    assert sorted(tmp_path.rglob("*")) == before
