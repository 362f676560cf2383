"""`envspec generations`, `rollback`, `gc` and `run`."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.projects import REPOSITORY, SITE_PACKAGES, Project, remove_tree, snapshot_of

if TYPE_CHECKING:
    from pathlib import Path


def next_generation(project: Project, value: str) -> None:
    """Another environment, active."""
    project.write_patch("beta/__init__.py", "VALUE = 1", f"VALUE = {value}")
    project.good("lock")
    project.good("build")


def generations(project: Project) -> list[tuple[int, bool, bool]]:
    """Number, active, there."""
    found = project.good("generations", "--json").json()["generations"]
    return [(each["number"], each["active"], each["there"]) for each in found]


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".partial"}


def test_each_environment_is_a_generation(built: Project) -> None:
    next_generation(built, "7")
    assert generations(built) == [(1, False, True), (2, True, True)]
    lines = built.good("generations").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "*"]


def test_rollback_switches_what_runs(built: Project) -> None:
    next_generation(built, "7")
    assert built.good("run", "--", "alpha").stdout == "alpha 7\n"
    assert "generation 1 is active" in built.good("rollback").stdout
    assert built.good("run", "--", "alpha").stdout == "alpha 2\n"
    assert generations(built) == [(1, True, True), (2, False, True)]
    built.good("rollback", "2")
    assert built.good("run", "--", "alpha").stdout == "alpha 7\n"


def test_rollback_switches_caches_and_import_hooks(project: Project) -> None:
    hook = "import os; os.environ['HOOK'] = '{}'\n"
    shows = "import os; print(os.environ['HOOK'], os.environ['TRITON_CACHE_DIR'])"
    seen = []
    for version in ("1.0", "2.0"):
        project.wheel("beta", version, {"beta.pth": hook.format(version)})
        project.write_spec({"beta": f"=={version}"})
        project.good("lock")
        project.good("build")
        seen.append(project.good("run", "--", "python", "-c", shows).stdout.split())
    assert [hook for hook, _ in seen] == ["1.0", "2.0"]
    assert seen[0][1] != seen[1][1]
    project.good("rollback")
    assert project.good("run", "--", "python", "-c", shows).stdout.split() == seen[0]


def test_rollback_before_the_first_generation_is_refused(built: Project) -> None:
    ran = built.run("rollback")
    assert ran.code == 2
    assert "no generation before 1" in ran.stderr
    assert generations(built) == [(1, True, True)]


def test_rollback_in_an_empty_store_is_refused(locked: Project) -> None:
    ran = locked.run("rollback", "--store", locked.folder / "empty")
    assert ran.code == 2
    assert "no generation" in ran.stderr
    assert not (locked.folder / "empty").exists()


def test_rollback_to_a_generation_that_never_was_is_refused(built: Project) -> None:
    ran = built.run("rollback", "9")
    assert ran.code == 2
    assert "no generation 9; there is: 1" in ran.stderr


def test_build_after_a_rollback_goes_forward_again(built: Project) -> None:
    next_generation(built, "7")
    built.good("rollback")
    built.good("build")
    assert built.good("run", "--", "alpha").stdout == "alpha 7\n"
    assert len(built.environments()) == 2


def test_status_after_a_rollback_says_that_the_lock_has_another(built: Project) -> None:
    next_generation(built, "7")
    built.good("rollback")
    ran = built.run("status")
    assert ran.code == 1
    assert "the lock has" in ran.stdout


# gc


def test_gc_keeps_what_generations_need(built: Project) -> None:
    next_generation(built, "7")
    before = built.environments()
    built.good("gc")
    assert built.environments() == before
    built.good("verify", "--deep")
    built.good("rollback")
    built.good("verify", "--deep")


def test_gc_forgets_generations_that_are_not_kept(built: Project) -> None:
    first = built.environments()
    next_generation(built, "7")
    ran = built.good("gc", "--keep", "1")
    assert "forgot  generation 1 of demo" in ran.stdout
    assert not set(first) & set(built.environments())
    assert generations(built) == [(2, True, True)]
    built.good("verify", "--deep")
    assert built.good("run", "--", "alpha").stdout == "alpha 7\n"
    assert built.leftovers() == []


def test_gc_leaves_no_wheel_tree_or_state_of_what_is_gone(built: Project) -> None:
    kinds = ("wheels", "trees", "bytecode", "receipts")
    fresh = {kind: names_in(built.store / kind) for kind in kinds}
    built.good("run", "--", "sh", "-c", "mkdir -p $TRITON_CACHE_DIR && touch $TRITON_CACHE_DIR/kernel")
    next_generation(built, "7")
    next_generation(built, "2")  # the first environment again
    built.good("gc", "--keep", "1")
    for kind in kinds:
        assert names_in(built.store / kind) == fresh[kind], kind
    built.good("verify", "--deep")


def test_gc_keeps_the_active_generation_whatever_is_asked(built: Project) -> None:
    next_generation(built, "7")
    built.good("rollback")
    built.good("gc", "--keep", "0")
    assert generations(built) == [(1, True, True)]
    assert built.good("run", "--", "alpha").stdout == "alpha 2\n"


def test_gc_dry_run_removes_nothing(built: Project) -> None:
    next_generation(built, "7")
    before = snapshot_of(built.store)
    ran = built.good("gc", "--keep", "1", "--dry-run")
    assert "would forget  generation 1" in ran.stdout
    assert snapshot_of(built.store) == before


def test_gc_keeps_what_a_process_runs_from(built: Project) -> None:
    process = subprocess.Popen(
        [built.store / "profiles" / "demo" / "bin" / "python", "-c", "print('ready', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        first = built.environments()
        next_generation(built, "7")
        ran = built.good("gc", "--keep", "1", "--json").json()
        assert {each["pid"] for each in ran["in_use"]} == {process.pid}
        assert set(first) < set(built.environments())
    finally:
        process.communicate("\n")
    built.good("gc", "--keep", "1")
    assert not set(first) & set(built.environments())


def test_gc_of_an_empty_store_is_good(project: Project) -> None:
    assert project.good("gc", "--json").json()["paths"] == []


def test_gc_does_not_take_a_foreign_folder_for_a_store(project: Project) -> None:
    foreign = project.folder / "foreign"
    foreign.mkdir()
    (foreign / "store.json").write_text("[]")
    (foreign / "wheels").mkdir()
    (foreign / "wheels" / "mine").write_text("x")
    ran = project.run("gc", "--store", foreign)
    assert ran.code == 2
    assert (foreign / "wheels" / "mine").exists()


def test_rollback_to_what_was_collected_says_so(built: Project) -> None:
    next_generation(built, "7")
    first = next(iter(built.store.glob("generations/demo/1"))).resolve()
    remove_tree(first)
    ran = built.run("rollback")
    assert ran.code == 2
    assert "is gone" in ran.stderr
    assert built.good("run", "--", "alpha").stdout == "alpha 7\n"


# run


@pytest.mark.parametrize("code", [0, 1, 2, 77, 255])
def test_run_passes_the_exit_code(built: Project, code: int) -> None:
    assert built.run("run", "--", "python", "-c", f"raise SystemExit({code})").code == code


def test_run_ends_by_the_signal_that_ends_the_program(built: Project) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert built.run("run", "--", "python", "-c", code).code == -signal.SIGTERM


def test_run_hands_arguments_over_as_they_are(built: Project) -> None:
    arguments = ["--json", "--store", "a b", "", "$HOME", "*", "--", "é", "-q"]
    assert built.good("run", "--", "alpha", *arguments).stdout == f"alpha 2 {' '.join(arguments)}\n"


def test_run_puts_caches_with_the_environment(built: Project) -> None:
    names = (
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "FLASHINFER_WORKSPACE_BASE",
        "CUDA_CACHE_PATH",
    )
    env = built.good("status", "--json").host()["env"]
    code = f"import os; print(*(os.environ[name] for name in {names!r}), sep='\\n')"
    places = built.good("run", "--", "python", "-c", code, TRITON_CACHE_DIR="/elsewhere").stdout.splitlines()
    assert len(set(places)) == len(names)
    assert all(place.startswith(f"{built.store}/state/{env}/") for place in places)


def test_run_ignores_pythonpath_pythonhome_and_the_user_site(built: Project) -> None:
    stranger = built.folder / "stranger"
    (stranger / "beta").mkdir(parents=True)
    (stranger / "beta" / "__init__.py").write_text("VALUE = 'stranger'\n")
    ran = built.good("run", "--", "alpha", PYTHONPATH=f"{REPOSITORY}:{stranger}")
    assert ran.stdout == "alpha 2\n"


def test_run_of_a_program_that_is_nowhere_says_so(built: Project) -> None:
    ran = built.run("run", "--", "no-such-program", "--json")
    assert ran.code == 2
    assert "`no-such-program` cannot be run" in ran.stderr
    assert ran.stdout == ""


def test_run_before_the_first_build_says_how_to_build(locked: Project) -> None:
    ran = locked.run("run", "--", "alpha")
    assert ran.code == 2
    assert "envspec build" in ran.stderr


def test_run_takes_programs_of_the_environment_first(built: Project) -> None:
    fake = built.folder / "bin" / "alpha"
    fake.write_text("#!/bin/sh\necho fake\n")
    fake.chmod(0o755)
    assert built.good("run", "--", "alpha").stdout == "alpha 2\n"


def test_console_script_runs_by_its_path(built: Project) -> None:
    done = subprocess.run(
        [built.store / "profiles" / "demo" / "bin" / "alpha", "x"],
        env={"PYTHONPATH": "/nowhere"},
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    assert done.stdout == "alpha 2 x\n"


@pytest.mark.parametrize("how", ["run", "python"])
def test_running_writes_nothing_into_the_environment(built: Project, how: str) -> None:
    """Also for root, whom no mode stops, and without PYTHONDONTWRITEBYTECODE."""
    active = built.active()
    assert active is not None
    before = snapshot_of(active)
    code = "import alpha, beta, beta.more; alpha.main()"
    if how == "run":
        built.good("run", "--", "python", "-c", code, PYTHONDONTWRITEBYTECODE=None)
    else:
        subprocess.run([active / "bin" / "python", "-c", code], env={}, check=True, capture_output=True)
    assert snapshot_of(active) == before
    assert built.good("status", "--json").host()["drift"] == []


def test_bytecode_is_there_for_every_module(built: Project) -> None:
    active = built.active()
    assert active is not None
    folder = active / SITE_PACKAGES
    tag = sys.implementation.cache_tag
    for module in folder.rglob("*.py"):
        assert (module.parent / "__pycache__" / f"{module.stem}.{tag}.pyc").is_file(), module


def test_activate_script_prepares_a_shell(built: Project) -> None:
    script = built.store / "profiles" / "demo" / "bin" / "activate"
    done = subprocess.run(
        [
            "/bin/sh",
            "-c",
            f'set -e; . "{script}"; alpha; echo "$TRITON_CACHE_DIR"; deactivate; echo "[$TRITON_CACHE_DIR]$PATH"',
        ],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    alpha, cache, after = done.stdout.splitlines()
    assert alpha == "alpha 2"
    assert cache.startswith(f"{built.store}/state/")
    assert after == "[]/usr/bin:/bin"
