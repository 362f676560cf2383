"""An environment's modules are imported by its own interpreter, and every way in which that can fail is told as it is."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from builder import process
from builder.agent.driver_stub import find_compiler, has_driver
from builder.agent.imports import ImportedModule, ImportProof, debian_package, prove_imports
from envspec.errors import EnvspecError

COMPILER = find_compiler(os.environ)
INCLUDE = Path(sysconfig.get_paths()["include"])
DRIVER_IS_HERE = has_driver(Path(sys.executable), environ={})


class Environment:
    """A virtual environment with modules of our own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "env"
        self.scratch = folder / "scratch"
        made = process.run([sys.executable, "-m", "venv", "--without-pip", str(self.root)])
        assert made.returncode == 0, made.stderr
        self.python = self.root / "bin" / "python"
        (self.site,) = self.root.glob("lib/python*/site-packages")
        self.place = self.site.relative_to(self.root).as_posix()

    def write(self, name: str, source: str) -> Path:
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source), encoding="utf-8")
        return path

    def prove(self, *modules: str, **options: Any) -> ImportProof:
        environ = {"PATH": os.environ.get("PATH", "")}
        options = {"environ": environ, "timeout_s": 60.0, **options}
        return prove_imports(self.python, modules, env_root=self.root, scratch=self.scratch, **options)

    def files(self) -> list[Path]:
        return sorted(self.root.rglob("*"))


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


def only(proof: ImportProof) -> ImportedModule:
    (module,) = proof.modules
    return module


# -- what imports ---------------------------------------------------------------------------------------------------------------------


def test_modules_that_import_pass_in_their_order_in_one_process(env: Environment) -> None:
    env.write("first.py", "import sys; sys.began = True")
    env.write("second/__init__.py", "import sys; assert sys.began")
    env.write("second/inner.py", "")
    proof = env.prove("first", "second.inner", "json")
    assert (proof.result, proof.reason, proof.with_stub) == ("pass", "", False)
    assert [(item.module, item.result) for item in proof.modules] == [
        ("first", "pass"),
        ("second.inner", "pass"),
        ("json", "pass"),
    ]
    assert all(item.seconds is not None and item.seconds >= 0 for item in proof.modules)
    assert json.loads(json.dumps(proof.to_json())) == proof.to_json()


def test_what_modules_print_is_kept_and_never_taken_for_a_result(env: Environment) -> None:
    env.write(
        "noisy.py",
        """
        import sys
        print('{"end": "broken", "seconds": 0.0, "chain": [], "innermost": 0}')
        print('{"all": true}')
        sys.stderr.write("a warning")
        """,
    )
    env.write("broken.py", "1 / 0")
    proof = env.prove("noisy", "broken")
    assert [item.result for item in proof.modules] == ["pass", "fail"]
    assert '{"all": true}' in proof.stdout
    assert proof.stderr == "a warning"


def test_a_module_that_closes_all_descriptors_or_forks_is_judged_once(env: Environment) -> None:
    env.write("closing.py", "import os; os.closerange(3, 100)")
    env.write(
        "forking.py", "import os, warnings; warnings.simplefilter('ignore'); child = os.fork(); child and os.wait()"
    )
    proof = env.prove("closing", "forking", "json")
    assert [item.result for item in proof.modules] == ["pass", "pass", "pass"]


def test_a_process_left_behind_does_not_turn_a_pass_into_a_failure(env: Environment) -> None:
    env.write("leaving.py", "import subprocess; subprocess.Popen(['sleep', '600'])")
    assert env.prove("leaving").result == "pass"


def test_the_environment_stays_unwritten_and_its_bytecode_is_used(env: Environment) -> None:
    env.write("without_bytecode.py", "")
    source = env.write("with_bytecode.py", "print('from bytecode')")
    script = f"import py_compile; py_compile.compile({str(source)!r}, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"
    assert process.run([str(env.python), "-c", script]).returncode == 0
    source.write_text("print('from source')", encoding="utf-8")
    before = env.files()
    proof = env.prove("without_bytecode", "with_bytecode")
    assert (proof.result, proof.stdout) == ("pass", "from bytecode\n")
    assert env.files() == before


def test_nothing_of_the_callers_environment_reaches_a_module_but_a_few_variables(env: Environment) -> None:
    env.write(
        "telling.py", "import json, os, sys; print(json.dumps([dict(os.environ), os.getcwd(), sys.argv, sys.path]))"
    )
    (env.root.parent / "elsewhere").mkdir()
    (env.root.parent / "elsewhere" / "foreign.py").write_text("", encoding="utf-8")
    environ = {
        "PATH": "/usr/bin",
        "LC_ALL": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_TOKEN": "secret",
        "PYTHONPATH": str(env.root.parent / "elsewhere"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": str(env.root.parent / "elsewhere"),
        "HOME": str(env.root.parent / "elsewhere"),
    }
    proof = env.prove("telling", "foreign", environ=environ)
    assert [item.result for item in proof.modules] == ["pass", "fail"]
    variables, folder, arguments, path = json.loads(proof.stdout)
    assert variables["PATH"] == "bin:/usr/bin"
    assert (variables["LC_ALL"], variables["CUDA_VISIBLE_DEVICES"], variables["HF_HUB_OFFLINE"]) == (
        "C.UTF-8",
        "0",
        "1",
    )
    assert {"HF_TOKEN", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH"}.isdisjoint(variables)
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert variables[name].startswith("<scratch>/")
    assert folder == str(env.scratch)
    assert arguments == ["-c"]
    assert env.place in path
    assert "" not in path


# -- what raises ----------------------------------------------------------------------------------------------------------------------


def test_the_whole_chain_is_kept_and_the_innermost_exception_is_the_root_cause(env: Environment) -> None:
    env.write("deep.py", "def load():\n    raise OSError('libcudart.so.12: cannot open shared object file')\nload()\n")
    env.write(
        "middle.py", "try:\n    import deep\nexcept OSError:\n    raise RuntimeError('operator nms does not exist')\n"
    )
    env.write(
        "outer.py",
        "try:\n    import middle\nexcept RuntimeError as error:\n    raise ImportError('install it') from error\n",
    )
    proof = env.prove("outer")
    module = only(proof)
    site = env.place
    assert module.reason == "ImportError: install it"
    assert module.root_cause == (f"OSError: libcudart.so.12: cannot open shared object file ({site}/deep.py:2 in load)")
    assert proof.reason == f"`outer` does not import: {module.root_cause}"
    assert [(item.relation, item.type, item.frames) for item in module.chain] == [
        ("raised", "ImportError", (f"{site}/outer.py:4 in <module>",)),
        ("cause", "RuntimeError", (f"{site}/outer.py:2 in <module>", f"{site}/middle.py:4 in <module>")),
        (
            "context",
            "OSError",
            (f"{site}/middle.py:2 in <module>", f"{site}/deep.py:3 in <module>", f"{site}/deep.py:2 in load"),
        ),
    ]
    assert "cause: RuntimeError: operator nms does not exist" in module.evidence
    assert str(env.root) not in json.dumps(proof.to_json())


def test_a_suppressed_context_is_kept(env: Environment) -> None:
    env.write(
        "hiding.py",
        "try:\n    import nowhere\nexcept ImportError:\n    raise ValueError('please install it') from None\n",
    )
    module = only(env.prove("hiding"))
    assert module.reason == "ValueError: please install it"
    assert module.root_cause == f"ModuleNotFoundError: No module named 'nowhere' ({env.place}/hiding.py:2 in <module>)"
    assert [item.relation for item in module.chain] == ["raised", "suppressed context"]


def test_an_exception_that_ended_within_the_standard_library_is_no_root_cause(env: Environment) -> None:
    env.write("asking.py", "import importlib.metadata\nimportlib.metadata.version('nowhere')\n")
    module = only(env.prove("asking"))
    assert module.root_cause.startswith(
        "importlib.metadata.PackageNotFoundError: No package metadata was found for nowhere"
    )


def test_a_cause_and_another_context_are_both_kept(env: Environment) -> None:
    env.write(
        "both.py",
        """
        try:
            raise KeyError("the context")
        except KeyError:
            raise ValueError("raised") from TypeError("the cause")
        """,
    )
    module = only(env.prove("both"))
    assert [(item.relation, item.type) for item in module.chain] == [
        ("raised", "ValueError"),
        ("cause", "TypeError"),
        ("context", "KeyError"),
    ]
    assert module.root_cause == "TypeError: the cause"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with CPython 3.11")
def test_members_of_a_group_are_kept(env: Environment) -> None:
    env.write("group.py", "raise ExceptionGroup('several', [ValueError('one'), TypeError('two')])")
    module = only(env.prove("group"))
    assert [(item.relation, item.type) for item in module.chain] == [
        ("raised", "ExceptionGroup"),
        ("member", "ValueError"),
        ("member", "TypeError"),
    ]
    assert module.root_cause == "ValueError: one"


@pytest.mark.parametrize(
    ("source", "root_cause"),
    [
        ("def broken(:\n", "SyntaxError: invalid syntax (odd.py, line 1) (SITE/odd.py:1)"),
        ("import sys; sys.exit(0)", "SystemExit: 0 (SITE/odd.py:1 in <module>)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt (SITE/odd.py:1 in <module>)"),
        (
            "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd",
            "odd.Odd: (its message cannot be had) (SITE/odd.py:3 in <module>)",
        ),
        ("raise ValueError('\\ud800 half')", "ValueError: \\ud800 half (SITE/odd.py:1 in <module>)"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines (SITE/odd.py:1 in <module>)"),
        (
            "e = ValueError('own cause'); e.__context__ = e; raise e",
            "ValueError: own cause (SITE/odd.py:1 in <module>)",
        ),
        (
            "import odd.inner",
            "ModuleNotFoundError: No module named 'odd.inner'; 'odd' is not a package (SITE/odd.py:1 in <module>)",
        ),
    ],
)
def test_odd_exceptions_are_told_in_one_line(env: Environment, source: str, root_cause: str) -> None:
    env.write("odd.py", source)
    module = only(env.prove("odd"))
    assert module.result == "fail"
    assert module.root_cause == root_cause.replace("SITE", env.place)


def test_endless_recursion_is_told_within_bounds(env: Environment) -> None:
    env.write("endless.py", "def again():\n    again()\nagain()\n")
    module = only(env.prove("endless"))
    assert module.root_cause.startswith("RecursionError: maximum recursion depth exceeded")
    assert len(module.chain[0].frames) <= 101


def test_after_a_module_that_raises_the_others_are_imported_too(env: Environment) -> None:
    env.write("broken.py", "1 / 0")
    proof = env.prove("broken", "json", "missing")
    assert [item.result for item in proof.modules] == ["fail", "pass", "fail"]
    assert proof.modules[2].reason == "ModuleNotFoundError: No module named 'missing'"
    assert proof.reason.startswith("`broken` does not import: ZeroDivisionError: division by zero")


# -- what ends the process ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import ctypes\nctypes.string_at(0)", "the process crashed with SIGSEGV"),
        ("import os\nos.abort()", "the process crashed with SIGABRT"),
        (
            "import os\nos.kill(os.getpid(), 9)",
            "the process was killed by SIGKILL, as the kernel does when memory runs out",
        ),
        ("import os\nos._exit(0)", "the process ended with exit code 0 instead of going on"),
        ("import os\nos._exit(7)", "the process ended with exit code 7 instead of going on"),
    ],
)
def test_a_module_that_ends_the_process_is_named_and_the_rest_is_not_reached(
    env: Environment, source: str, reason: str
) -> None:
    env.write("ending.py", source)
    proof = env.prove("json", "ending", "decimal")
    assert proof.result == "fail"
    assert [(item.module, item.result) for item in proof.modules] == [
        ("json", "pass"),
        ("ending", "fail"),
        ("decimal", "skip"),
    ]
    assert proof.modules[1].reason == reason
    assert proof.reason == f"`ending` does not import: {reason}"
    assert proof.modules[2].reason == "not reached: the process had ended"
    if "crashed" in reason:
        assert f'File "{env.place}/ending.py", line 2 in <module>' in proof.modules[1].evidence


def test_a_crash_is_told_also_where_a_module_has_turned_its_traceback_to_stderr(env: Environment) -> None:
    env.write("ending.py", "import ctypes, faulthandler\nfaulthandler.enable()\nctypes.string_at(0)")
    assert f'File "{env.place}/ending.py", line 3 in <module>' in only(env.prove("ending")).evidence


def test_a_module_that_hangs_is_named_with_the_place_where_it_hangs(env: Environment) -> None:
    env.write("hanging.py", "import time\n\ntime.sleep(600)")
    proof = env.prove("json", "hanging", timeout_s=2.0)
    assert [item.result for item in proof.modules] == ["pass", "fail"]
    assert proof.reason == "`hanging` does not import: no end after 2 s"
    assert f'File "{env.place}/hanging.py", line 3 in <module>' in proof.modules[1].evidence


def test_a_startup_hook_that_ends_the_interpreter_is_not_a_pass(env: Environment) -> None:
    env.write("hook.pth", "import os, sys; sys.stderr.write('from a hook') and sys.stderr.flush(); os._exit(0)")
    proof = env.prove("json")
    assert proof.result == "fail"
    assert only(proof).result == "skip"


# -- what is missing ------------------------------------------------------------------------------------------------------------------


def test_missing_host_libraries_are_told_first_with_their_packages_and_nothing_is_imported(env: Environment) -> None:
    proof = env.prove("json", libraries=["libc.so.6", "libmissing.so.1", "libGone_x2.so.3"])
    assert proof.result == "fail"
    assert proof.missing_libraries == ("libmissing.so.1", "libGone_x2.so.3")
    assert proof.reason.startswith("the host library `libmissing.so.1` cannot be loaded: libmissing.so.1: cannot open")
    assert proof.hint == "install them: on Debian and Ubuntu `apt-get install libmissing1 libgone-x2-3`"
    assert only(proof).result == "skip"


@pytest.mark.parametrize(
    ("soname", "package"),
    [
        ("libnuma.so.1", "libnuma1"),
        ("libibverbs.so.1", "libibverbs1"),
        ("libstdc++.so.6", "libstdc++6"),
        ("libX11.so.6", "libx11-6"),
        ("libGL.so.1", "libgl1"),
        ("libz.so.1", "zlib1g"),
        ("libglib-2.0.so.0", "libglib2.0-0"),
        ("libtorch.so", ""),
        ("x; rm -rf /", ""),
    ],
)
def test_debian_packages_follow_from_sonames(soname: str, package: str) -> None:
    assert debian_package(soname) == package


def test_an_interpreter_that_does_not_start_fails(env: Environment) -> None:
    env.python.unlink()
    proof = env.prove("json")
    assert proof.result == "fail"
    assert "rc 127" in proof.reason


def test_no_modules_prove_nothing(env: Environment) -> None:
    assert env.prove() == ImportProof(result="skip", with_stub=False, reason="no modules to import")


@pytest.mark.parametrize("name", ["", ".relative", "a..b", "a-b", "a b", "os;os", "a.", "1a"])
def test_names_of_no_module_are_refused_together(env: Environment, name: str) -> None:
    with pytest.raises(EnvspecError) as caught:
        env.prove("json", name, "x/y")
    assert [problem.message for problem in caught.value.problems] == [
        f"`{name}` is not the name of a module",
        "`x/y` is not the name of a module",
    ]


# -- the driver -----------------------------------------------------------------------------------------------------------------------

EXTENSION = """
#include <Python.h>
extern int cuInit(unsigned);
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "needs_driver"};
PyMODINIT_FUNC PyInit_needs_driver(void) {
    PyObject *made = PyModule_Create(&module);
    if (made) PyModule_AddIntConstant(made, "code", cuInit(0));
    return made;
}
"""


@pytest.fixture
def env_with_driver_need(env: Environment, tmp_path: Path) -> Environment:
    """An environment with an extension module that is linked against the driver."""
    if DRIVER_IS_HERE:
        pytest.skip("there is an NVIDIA driver here")
    if COMPILER is None or not (INCLUDE / "Python.h").exists():
        pytest.skip("no C compiler or no headers of Python")
    (tmp_path / "build").mkdir()
    driver, source = tmp_path / "build" / "libcuda.so.1", tmp_path / "build" / "extension.c"
    source.with_name("driver.c").write_text("int cuInit(unsigned flags) { return 7; }", encoding="ascii")
    source.write_text(EXTENSION, encoding="ascii")
    extension = env.site / "needs_driver.so"
    for argv in (
        ["-o", str(driver), str(source.with_name("driver.c")), "-Wl,-soname,libcuda.so.1"],
        ["-o", str(extension), str(source), "-I", str(INCLUDE), str(driver)],
    ):
        done = process.run([*COMPILER, "-shared", "-fPIC", *argv])
        assert done.returncode == 0, done.stderr
    env.write("asks_driver.py", "import needs_driver\nassert needs_driver.code == 100, needs_driver.code\n")
    return env


def test_an_extension_linked_against_the_driver_imports_with_the_stub_alone(env_with_driver_need: Environment) -> None:
    bare = process.run([str(env_with_driver_need.python), "-I", "-c", "import needs_driver"], env={})
    assert "libcuda.so.1: cannot open shared object file" in bare.stderr
    proof = env_with_driver_need.prove("needs_driver", "asks_driver")
    assert (proof.result, proof.with_stub, proof.reason) == ("pass", True, "")


def test_without_a_compiler_the_proof_is_skipped_and_never_passed(env_with_driver_need: Environment) -> None:
    proof = env_with_driver_need.prove("json", environ={"PATH": str(env_with_driver_need.root / "bin")})
    assert (proof.result, proof.with_stub) == ("skip", False)
    assert proof.reason == "no NVIDIA driver and no C compiler to build a stub"
    assert only(proof).result == "skip"


def test_a_failure_with_the_stub_is_a_failure(env_with_driver_need: Environment) -> None:
    proof = env_with_driver_need.prove("needs_driver", "missing")
    assert (proof.result, proof.with_stub) == ("fail", True)
    assert [item.result for item in proof.modules] == ["pass", "fail"]


def test_an_environment_without_driver_need_gets_no_stub_and_needs_no_compiler(env: Environment) -> None:
    proof = env.prove("json", environ={"PATH": str(env.root / "bin")})
    assert (proof.result, proof.with_stub) == ("pass", False)
