"""What a line of code in a `.pth` does: whether it is one of those that honest packages have.

A line is known by what it does, and not by the name of its file: it may import modules that its own package brought, look at the standard
library, and call what it imported. One that sets variables, runs text as code, or reaches for the network or for other programs is not benign.
Text that stands in the line itself, as `exec('...')`, is read as if it were the line: coverage writes its `if` and `try` so.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.facts import StartupHook
    from envspec.observed import ObservedDistribution

HARMLESS_MODULES = frozenset(
    {"importlib", "importlib.util", "importlib.machinery", "os", "os.path", "pathlib", "site", "sys", "types"}
)
"""Modules of the standard library that a benign line may import."""

HARMLESS_CALLS = frozenset(
    {
        *(
            "append",
            "dirname",
            "environ.get",
            "getattr",
            "getenv",
            "get",
            "hasattr",
            "insert",
            "isdir",
            "join",
            "locals",
        ),
        *(
            "module_from_spec",
            "exec_module",
            "setdefault",
            "spec_from_file_location",
            "ModuleType",
            "format",
            "startswith",
        ),
        *(
            "_getframe",
            "find_spec",
            "new_module",
            "addsitedir",
            "getsitepackages",
            "exists",
            "str",
            "bool",
            "len",
            "remove",
        ),
    }
)
"""What a benign line may call beside functions of its own module: how paths, and namespace packages of setuptools, are made."""

TELLING_NAMES = frozenset(
    {
        *(
            "__builtins__",
            "base64",
            "builtins",
            "codecs",
            "compile",
            "ctypes",
            "eval",
            "exec",
            "http",
            "marshal",
            "open",
            "pickle",
        ),
        *(
            "popen",
            "putenv",
            "requests",
            "socket",
            "spawn",
            "subprocess",
            "system",
            "tempfile",
            "threading",
            "urllib",
            "zlib",
        ),
    }
)
"""Names that no benign line has."""

TEXT_STATEMENTS = (ast.Assign, ast.Expr, ast.If, ast.Import, ast.Pass, ast.Try)
"""Statements that text in a benign line may have: none of them calls anything unseen, as a decorator or a `with` would."""


def is_benign(hook: StartupHook, distribution: ObservedDistribution | None) -> bool:
    """Whether a start-up hook only adds paths, or runs lines as honest packages do.

    Args:
        hook: Which.
        distribution: Whose it is; None if nobody's.
    """
    whole = set() if distribution is None else _modules(distribution)
    try:
        return all(_is_benign_line(line, whole) for line in hook.code)
    except RecursionError:
        return False  # nested deeper than `ast.unparse` can follow


def danger_of(lines: Iterable[str]) -> str:
    """The first name in some lines of code that no benign line has; empty if there is none."""
    for line in lines:
        try:
            tree = ast.parse(line.strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return "code that cannot be read"
        for node in ast.walk(tree):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            names = [alias.name.partition(".")[0] for alias in node.names] if isinstance(node, ast.Import) else [name]
            for each in names:
                if each in TELLING_NAMES:
                    return each
    return ""


def _is_benign_line(line: str, own: set[str]) -> bool:
    tree = _parsed(line)
    if tree is None:
        return False
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            return False
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                if top in own:
                    imported.add(alias.asname or top)
                elif alias.name not in HARMLESS_MODULES:
                    return False
        elif (isinstance(node, ast.Name) and node.id in TELLING_NAMES) or (
            isinstance(node, ast.Attribute) and node.attr in TELLING_NAMES
        ):
            return False
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
            targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
            if any("environ" in ast.unparse(target) for target in targets):
                return False
    return all(_is_benign_call(node, imported, own) for node in ast.walk(tree) if isinstance(node, ast.Call))


def _parsed(line: str) -> ast.Module | None:
    """A line with the text that it runs in the place of its `exec`; None if it cannot be read, or defines more than it does."""
    try:
        tree = ast.parse(line.strip())
        body: list[ast.stmt] = []
        for statement in tree.body:
            text = _text_of_exec(statement)
            within = ast.parse(text).body if text else []
            if any(not isinstance(node, TEXT_STATEMENTS) for node in _statements(within)):
                return None
            body += within or [statement]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    tree.body = body
    return tree


def _text_of_exec(statement: ast.stmt) -> str:
    """What `exec('...')` runs; empty if the statement is another, or its text is made while it runs."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return ""
    call = statement.value
    if not isinstance(call.func, ast.Name) or call.func.id != "exec" or len(call.args) != 1 or call.keywords:
        return ""
    argument = call.args[0]
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else ""


def _statements(body: Iterable[ast.stmt]) -> list[ast.stmt]:
    return [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.stmt)]


def _is_benign_call(call: ast.Call, imported: set[str], own: set[str]) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        if function.id == "__import__":
            argument = call.args[0] if call.args else None
            name = argument.value if isinstance(argument, ast.Constant) else ""
            return isinstance(name, str) and (name.partition(".")[0] in own or name in HARMLESS_MODULES)
        return function.id in HARMLESS_CALLS or function.id in imported
    if isinstance(function, ast.Attribute):
        if "environ" in ast.unparse(function) and function.attr not in ("get", "join"):
            return False
        root: ast.expr = function
        while isinstance(root, (ast.Attribute, ast.Call)):
            root = root.value if isinstance(root, ast.Attribute) else root.func
        if isinstance(root, ast.Name) and root.id in imported:
            return True
        if isinstance(root, ast.Name) and root.id == "__import__":
            return True  # what is imported is judged above
        return function.attr in HARMLESS_CALLS
    return False


def _modules(distribution: ObservedDistribution) -> set[str]:
    """Modules at the root that a distribution brought and nobody changed."""
    changed = {file.path.rpartition("/")[2].removesuffix(".py") for file in distribution.files if file.is_edited}
    return {name.removesuffix(".py") for name in distribution.top_level} - changed
