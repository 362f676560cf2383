"""What belongs to the host follows from the interpreter and the path alone, and shells come back as they were."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from builder import process
from builder.agent.hostfiles import (
    CACHE_VARIABLES,
    cache_environment,
    host_files,
    host_links,
    run_environment,
)
from tests.support.stores import PYTHON, add_wheel, built, make_plan, new_store, this_interpreter

ODD_NAMES = ["plain", "a b", "it's", 'a "b" c', "$HOME `id` \\x \\\\", "{b} %s ü", "end\\", "*?[a]!#&;|"]
SHELLS = ["sh", "bash", "dash", "zsh", "fish"]
USERS_OWN = {
    "PYTHONHOME": "/users/own",
    "PYTHONPATH": "/users/a b:/users/'c'",
    "TRITON_CACHE_DIR": "$HOME `id` \"x\" 'y' \\",
    "VIRTUAL_ENV": "/users/venv",
    "UNRELATED": "x",
}
CHANGED_BY_SHELLS = {"_", "SHLVL", "PWD", "OLDPWD", "LC_CTYPE", "LD_LIBRARY_PATH"}


class Activation:
    """An environment's files for shells, under a name of any kind, and a shell that reads them."""

    def __init__(self, folder: Path, name: str, shell: str) -> None:
        found = shutil.which(shell)
        if found is None:
            pytest.skip(f"no {shell} here")
        self.shell = found
        self.is_fish = shell == "fish"
        self.folder = folder
        self.root, self.state = self.add(name)

    def add(self, name: str) -> tuple[Path, Path]:
        root, state = self.folder / name / "env", self.folder / name / "state"
        files = host_files(
            root, state, env="e" * 32, name=f"prompt-{name}", site="0" * 64, interpreter=this_interpreter()
        )
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        return root, state

    def run(self, *steps: str, before: str = "", variables: dict[str, str] | None = None) -> list[dict[str, str]]:
        """Run steps in one shell: `activate` (of an environment's root) and `deactivate`; the variables after each."""
        words = [self.shell, *(["--no-config"] if self.is_fish else ["-f"] if "zsh" in self.shell else [])]
        script = before + "\n"
        arguments = []
        for step in ("", *steps):
            if step.startswith("/"):
                arguments.append(step + ("/bin/activate.fish" if self.is_fish else "/bin/activate"))
                place = f"$argv[{len(arguments)}]" if self.is_fish else f'"${{{len(arguments)}}}"'
                script += f"{'source' if self.is_fish else '.'} {place}\n"
            elif step:
                script += f"{step}\n"
            script += "env -0; echo\n"
        (self.folder / "script").write_text(script)
        done = process.run(
            [*words, os.fspath(self.folder / "script"), *arguments],
            env={"PATH": os.environ["PATH"], "HOME": os.fspath(self.folder), **(variables or {})},
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return [
            {
                name: value
                for name, _, value in (each.partition("=") for each in line.split("\0") if each)
                if name not in CHANGED_BY_SHELLS
            }
            for line in done.stdout.split("\n")[:-1]
        ]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ODD_NAMES)
def test_activation_sets_and_deactivation_restores_everything(tmp_path: Path, name: str, shell: str) -> None:
    shells = Activation(tmp_path, name, shell)
    for variables in ({}, USERS_OWN):
        before, during, after = shells.run(os.fspath(shells.root), "deactivate", variables=variables)
        assert after == before
        assert during == {
            **{key: value for key, value in before.items() if key not in ("PYTHONHOME", "PYTHONPATH")},
            **cache_environment(shells.state),
            "PATH": f"{shells.root}/bin:{before['PATH']}",
            "VIRTUAL_ENV": os.fspath(shells.root),
            "VIRTUAL_ENV_PROMPT": f"prompt-{name}",
        }


@pytest.mark.parametrize("shell", SHELLS)
def test_activating_again_or_another_does_not_pile_up(tmp_path: Path, shell: str) -> None:
    shells = Activation(tmp_path, "one", shell)
    other, _ = shells.add("two")
    one, two = os.fspath(shells.root), os.fspath(other)
    before, *during, after = shells.run(one, one, two, one, two, "deactivate", variables=USERS_OWN)
    assert [each["VIRTUAL_ENV"] for each in during] == [one, one, two, one, two]
    assert [each["PATH"] for each in during] == [f"{each}/bin:{before['PATH']}" for each in (one, one, two, one, two)]
    assert after == before


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh"])
def test_a_strict_shell_is_not_ended(tmp_path: Path, shell: str) -> None:
    shells = Activation(tmp_path, "a b", shell)
    root = os.fspath(shells.root)
    before, _, _, after = shells.run(root, root, "deactivate", before="set -eu")
    assert after == before


@pytest.mark.parametrize("shell", SHELLS)
def test_nothing_of_the_activation_is_left_in_the_shell(tmp_path: Path, shell: str) -> None:
    shells = Activation(tmp_path, "plain", shell)
    if shells.is_fish:
        look = "set --names | string match -i '*envspec*'; functions --names | string match deactivate; true"
    else:
        look = "set | grep -i '^_envspec' && exit 9; type deactivate 2>&1 | grep -q function && exit 9; :"
    before, _, _, after = shells.run(os.fspath(shells.root), "deactivate", look)
    assert after == before


# -- the interpreter's files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD_NAMES)
def test_python_and_scripts_run_in_a_store_of_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    store = new_store(tmp_path / name / "store")
    part = add_wheel(
        store,
        "alpha",
        {"alpha.py": "import sys\ndef main(): print(sys.prefix)\n"},
        entry_points="[console_scripts]\nalpha-run = alpha:main\n",
        data={"scripts/hello": "#!python\nimport sys\nprint(sys.prefix)\n"},
    )
    root = built(store, make_plan(store, [part])).path
    for words in (["python", "-c", "import alpha; alpha.main()"], ["alpha-run"], ["hello"]):
        done = process.run([os.fspath(root / "bin" / words[0]), *words[1:]], env={"PATH": os.defpath})
        assert (done.stdout.rstrip("\n"), done.stderr) == (os.fspath(root), "")
    script = '. "$1/bin/activate" && cd / && alpha-run && python -c "import alpha; alpha.main()"'
    done = process.run(["sh", "-c", script, "sh", os.fspath(root)], env={"PATH": os.defpath})
    assert (done.stdout.splitlines(), done.stderr) == ([os.fspath(root)] * 2, "")


def test_links_lead_to_the_interpreter_by_every_usual_name() -> None:
    interpreter = this_interpreter()
    assert host_links(interpreter) == {
        "bin/python": os.fspath(interpreter.path),
        "bin/python3": "python",
        f"bin/python{PYTHON}": "python",
    }
    assert "bin/python3.12" in host_links(replace(interpreter, version="3.12.1"))


def test_the_configuration_names_the_environment_and_shuts_out_the_system_s_packages() -> None:
    files = host_files(
        Path("/s/envs/x"), Path("/s/state/x"), env="e" * 32, name="demo", site="5" * 64, interpreter=this_interpreter()
    )
    assert set(files) == {"pyvenv.cfg", "bin/activate", "bin/activate.fish"}
    lines = dict(line.split(" = ", 1) for line in files["pyvenv.cfg"].splitlines())
    assert lines == {
        "home": os.fspath(this_interpreter().path.parent),
        "implementation": "CPython",
        "version_info": this_interpreter().version,
        "include-system-site-packages": "false",
        "prompt": "demo",
        "envspec-env": "e" * 32,
        "envspec-site": "5" * 64,
    }


def test_the_same_inputs_give_the_same_files() -> None:
    made = [
        host_files(Path("/s/e"), Path("/s/state"), env="e", name="n", site="s", interpreter=this_interpreter())
        for _ in range(2)
    ]
    assert made[0] == made[1]


# -- running --------------------------------------------------------------------------------------------------------------------------


def test_a_run_gets_the_environment_first_and_caches_of_its_own() -> None:
    given = {"PATH": "/bin", "PYTHONPATH": "/x", "PYTHONHOME": "/y", "__PYVENV_LAUNCHER__": "z", "HOME": "/h"}
    found = run_environment(Path("/s/envs/e"), Path("/s/state/e"), given)
    assert found == {
        "HOME": "/h",
        "PATH": "/s/envs/e/bin:/bin",
        "VIRTUAL_ENV": "/s/envs/e",
        "PYTHONDONTWRITEBYTECODE": "1",
        **{variable: f"/s/state/e/{folder}" for variable, folder in CACHE_VARIABLES.items()},
    }


def test_a_run_without_a_path_gets_the_usual_one() -> None:
    assert run_environment(Path("/e"), Path("/s"), {})["PATH"] == f"/e/bin:{os.defpath}"


def test_two_environments_have_no_cache_in_common() -> None:
    one, two = (set(cache_environment(Path("/s/state") / env).values()) for env in "ab")
    assert not one & two
    assert len(one) == len(CACHE_VARIABLES)
