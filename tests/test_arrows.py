"""The arrows of `docs/architecture.md`: who may import whom. Read from the sources, nothing is run.

envspec/cli -> builder -> envspec values
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONGEST_MODULE = 520  # lines
AGENT_MAY_IMPORT = {
    "builder.agent",
    "builder.binary_facts",
    "builder.bundle",
    "builder.elf",
    "builder.elf_image",
    "builder.fatbin",
    "builder.outcome",
    "builder.process",
    "builder.progress",
    "builder.session",
    "builder.startup_hooks",
    "builder.transports",
    "builder.transports.connection",
    "builder.transports.ssh",
    "envspec.binaries",
    "envspec.canonical",
    "envspec.compose",
    "envspec.errors",
    "envspec.facts",
    "envspec.layout",
    "envspec.observed",
    "envspec.printable",
    "envspec.probe",
    "envspec.receipt",
    "envspec.tree",
}


@dataclass(frozen=True)
class Module:
    """A module of ours and what it imports."""

    name: str
    path: Path
    tree: ast.Module

    def imports(self, *, at_runtime: bool = True) -> set[str]:
        """Every module that it imports anywhere, functions included; what is only for type checkers is left out at runtime."""
        skipped = {
            id(inner)
            for node in ast.walk(self.tree)
            if at_runtime and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for statement in node.body
            for inner in ast.walk(statement)
        }
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name} imports relatively"
                # `from builder import process` imports a module too.
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= names & MODULE_NAMES or {str(node.module)}
        return found


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = sorted(path for package in ("envspec", "builder") for path in (ROOT / package).rglob("*.py"))
MODULE_NAMES = {name_of(path) for path in PATHS}
MODULES = {name_of(path): Module(name_of(path), path, ast.parse(path.read_text(encoding="utf-8"))) for path in PATHS}


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def is_cli(name: str) -> bool:
    return within(name, "envspec.cli") or name == "envspec.__main__"


def strangers(names: set[str]) -> set[str]:
    """The names that are neither ours nor the standard library's."""
    return {
        name
        for name in names
        if not within(name, "envspec")
        and not within(name, "builder")
        and name.partition(".")[0] not in sys.stdlib_module_names
    }


@pytest.mark.parametrize("name", [name for name in sorted(MODULES) if within(name, "envspec") and not is_cli(name)])
def test_values_never_import_effects_or_the_command_line(name: str) -> None:
    imported = MODULES[name].imports(at_runtime=False)
    assert {each for each in imported if within(each, "builder") or is_cli(each)} == set()


@pytest.mark.parametrize("name", [name for name in sorted(MODULES) if within(name, "builder")])
def test_effects_never_import_the_command_line(name: str) -> None:
    assert {each for each in MODULES[name].imports(at_runtime=False) if is_cli(each)} == set()


@pytest.mark.parametrize("name", [name for name in sorted(MODULES) if within(name, "builder.agent")])
def test_agent_imports_only_the_standard_library_and_what_travels_with_it(name: str) -> None:
    imported = MODULES[name].imports() - {"envspec"}  # the version, which travels too
    assert strangers(imported) == set()
    ours = {each for each in imported if within(each, "envspec") or within(each, "builder")}
    assert {each for each in ours if not any(within(each, allowed) for allowed in AGENT_MAY_IMPORT)} == set()


def test_what_travels_with_the_agent_imports_nothing_else() -> None:
    for name in sorted(AGENT_MAY_IMPORT - {"builder.agent"}):
        imported = MODULES[name].imports()
        assert strangers(imported) == set(), name
        ours = {each for each in imported if within(each, "envspec") or within(each, "builder")}
        assert {each for each in ours if not any(within(each, allowed) for allowed in AGENT_MAY_IMPORT)} == set(), name


def test_only_one_module_starts_processes() -> None:
    users = {name for name, module in MODULES.items() if "subprocess" in module.imports()}
    # A probe is a program of its own, run by the environment that it probes: it cannot import what is ours.
    assert {name for name in users if not within(name, "builder.probes")} == {"builder.process"}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_nothing_starts_a_shell(name: str) -> None:
    for node in ast.walk(MODULES[name].tree):
        if isinstance(node, ast.Call):
            assert not any(keyword.arg == "shell" for keyword in node.keywords), f"line {node.lineno}"
            assert ast.unparse(node.func) not in {"os.system", "os.popen", "subprocess.getoutput"}, (
                f"line {node.lineno}"
            )


# A probe is a program of its own: printing is its purpose.
@pytest.mark.parametrize(
    "name", [name for name in sorted(MODULES) if not is_cli(name) and not within(name, "builder.probes")]
)
def test_only_the_command_line_prints_and_exits(name: str) -> None:
    for node in ast.walk(MODULES[name].tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"print", "sys.exit", "exit", "quit", "sys.stdout.write", "sys.stderr.write"}, (
                f"line {node.lineno}"
            )


@pytest.mark.parametrize("name", [name for name in sorted(MODULES) if within(name, "envspec") and not is_cli(name)])
def test_values_have_no_effects(name: str) -> None:
    """No process, socket, clock or environment variable: what a value is depends on its arguments alone."""
    effects = {
        "subprocess",
        "socket",
        "ssl",
        "http",
        "urllib.request",
        "httpx",
        "time",
        "tempfile",
        "shutil",
        "random",
        "threading",
    }
    assert MODULES[name].imports() & effects == set()
    read = {ast.unparse(node) for node in ast.walk(MODULES[name].tree) if isinstance(node, ast.Attribute)}
    assert read & {"os.environ", "os.getenv", "datetime.now", "datetime.utcnow", "date.today"} == set()


@pytest.mark.parametrize("name", [name for name in sorted(MODULES) if within(name, "builder.probes")] or ["builder"])
def test_probes_import_nothing_of_ours(name: str) -> None:
    if name in {"builder", "builder.probes"}:
        return
    assert {each for each in MODULES[name].imports() if within(each, "envspec") or within(each, "builder")} == set()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_module_is_longer_than_a_person_can_hold(name: str) -> None:
    assert len(MODULES[name].path.read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_module_says_what_it_is_for(name: str) -> None:
    if MODULES[name].path.stat().st_size:
        assert ast.get_docstring(MODULES[name].tree)


def test_reader_of_imports_sees_every_form() -> None:
    """The tests above are worth what this function sees."""
    text = (
        "import json, os.path\n"
        "from builder import process\n"
        "from envspec.errors import EnvspecError\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import httpx\n"
        "def late():\n    from builder.fetch import fetch_wheels\n"
    )
    module = Module("x", Path("x.py"), ast.parse(text))
    assert module.imports() == {"json", "os.path", "builder.process", "envspec.errors", "typing", "builder.fetch"}
    assert module.imports(at_runtime=False) - module.imports() == {"httpx"}
