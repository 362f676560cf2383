"""What an environment has that belongs to the host: its link to the interpreter, `pyvenv.cfg`, and scripts that activate it.

No digest covers these files; what they must be follows from the interpreter and the path alone, so that drift in them shows all the same.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from builder.agent.store import may_write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.agent.interpreter import Interpreter
    from builder.agent.store import Store

CACHE_VARIABLES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "CUDA_CACHE_PATH": "cuda",
}
"""Variables that say where compilers put what they make at run time, and the folder of the environment's state that each gets: code that one
environment compiled is never loaded by another."""

_SH = """\
# Source this file (sh, bash, zsh); `deactivate` undoes it.
if [ -n "${{_ENVSPEC_ACTIVE:-}}" ]; then
    deactivate
fi
_ENVSPEC_ACTIVE=yes
for _envspec_name in {names}; do
    eval "_ENVSPEC_HAD_$_envspec_name=\\${{$_envspec_name+yes}} _ENVSPEC_OLD_$_envspec_name=\\${{$_envspec_name-}}"
done
deactivate() {{
    for _envspec_name in {names}; do
        eval "if [ -n \\"\\$_ENVSPEC_HAD_$_envspec_name\\" ]
            then export $_envspec_name=\\"\\$_ENVSPEC_OLD_$_envspec_name\\"
            else unset $_envspec_name
        fi"
        unset "_ENVSPEC_HAD_$_envspec_name" "_ENVSPEC_OLD_$_envspec_name"
    done
    unset _envspec_name _ENVSPEC_ACTIVE
    unset -f deactivate
    hash -r 2>/dev/null || :
}}
unset PYTHONHOME PYTHONPATH
export VIRTUAL_ENV={root}
export VIRTUAL_ENV_PROMPT={prompt}
export PATH="$VIRTUAL_ENV/bin:$PATH"
{exports}hash -r 2>/dev/null || :
"""

_FISH = """\
# Source this file (fish); `deactivate` undoes it.
if set -q _ENVSPEC_NAMES
    deactivate
end
set -g _ENVSPEC_NAMES {names}
for _envspec_name in $_ENVSPEC_NAMES
    if set -q $_envspec_name
        set -g _ENVSPEC_OLD_$_envspec_name $$_envspec_name
    end
end
function deactivate
    for name in $_ENVSPEC_NAMES
        set -l old _ENVSPEC_OLD_$name
        if set -q $old
            set -gx $name $$old
            set -e $old
        else
            set -e $name
        end
    end
    set -e _ENVSPEC_NAMES
    functions -e deactivate
end
set -e PYTHONHOME
set -e PYTHONPATH
set -gx VIRTUAL_ENV {root}
set -gx VIRTUAL_ENV_PROMPT {prompt}
set -gx PATH $VIRTUAL_ENV/bin $PATH
{exports}"""

_OWN_STATE = "envspec/state"
"""Below a user's folder for caches."""

_SAVED_VARIABLES = ("PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", *CACHE_VARIABLES)


def cache_environment(state: Path) -> dict[str, str]:
    """The variables that keep what is compiled at run time with the environment.

    Args:
        state: The environment's folder for state.
    """
    return {variable: os.fspath(state / folder) for variable, folder in CACHE_VARIABLES.items()}


def state_folder(store: Store, env: str, environ: Mapping[str, str]) -> Path:
    """Where this user's compilers keep what they make for an environment: in the store if it is his alone, else among his own caches.

    Who shares a store, or may only read it, loads no code that another user's compilers made.

    Args:
        store: The store.
        env: The env id.
        environ: This process's environment.
    """
    state = store.state(env)
    if may_write(state.parent) and not store.shared:
        return state
    caches = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")  # noqa: PTH111, PTH118 - text
    return state.__class__(caches, _OWN_STATE, env)


def run_environment(root: Path, state: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that runs in an environment.

    Args:
        root: The environment.
        state: Its folder for state.
        environ: The variables of the process that starts it.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in ("PYTHONHOME", "PYTHONPATH", "__PYVENV_LAUNCHER__")
    }
    path = kept.get("PATH", os.defpath)
    return {
        **kept,
        **cache_environment(state),
        "VIRTUAL_ENV": os.fspath(root),
        "PATH": f"{root}/bin{os.pathsep}{path}",
        # The bytecode is there already; what is not there must not be written into a tree that is proven.
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def host_links(interpreter: Interpreter) -> dict[str, str]:
    """Path in the environment -> target of the link."""
    minor = ".".join(interpreter.version.split(".")[:2])
    return {"bin/python": os.fspath(interpreter.path), "bin/python3": "python", f"bin/python{minor}": "python"}


def host_files(
    root: Path, state: Path | None, *, env: str, name: str, site: str, interpreter: Interpreter
) -> dict[str, str]:
    """Path in the environment -> content.

    Args:
        root: Where the environment will lie.
        state: Its folder for state; None if each user has an own one.
        env: The env id.
        name: Of the environment, for the prompt.
        site: The site digest.
        interpreter: The Python that runs it.
    """
    home = os.path.dirname(interpreter.path)  # noqa: PTH120 - text
    places_sh, places_fish = _state_words(state, env)
    names = " ".join(_SAVED_VARIABLES)
    return {
        "pyvenv.cfg": (
            f"home = {home}\n"
            f"implementation = CPython\n"
            f"version_info = {interpreter.version}\n"
            "include-system-site-packages = false\n"
            f"prompt = {name}\n"
            f"envspec-env = {env}\n"
            f"envspec-site = {site}\n"
        ),
        "bin/activate": _SH.format(
            names=names,
            root=shlex.quote(os.fspath(root)),
            prompt=shlex.quote(name),
            exports="".join(f"export {variable}={word}\n" for variable, word in places_sh.items()),
        ),
        "bin/activate.fish": _FISH.format(
            names=names,
            root=_quote_fish(os.fspath(root)),
            prompt=_quote_fish(name),
            exports="".join(f"set -gx {variable} {word}\n" for variable, word in places_fish.items()),
        ),
    }


def _state_words(state: Path | None, env: str) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of compilers' caches, each as a word of sh and as one of fish."""
    if state is not None:
        caches = cache_environment(state)
        return (
            {variable: shlex.quote(path) for variable, path in caches.items()},
            {variable: _quote_fish(path) for variable, path in caches.items()},
        )
    own = f"{_OWN_STATE}/{env}"
    base = 'test -n "$XDG_CACHE_HOME"; and echo $XDG_CACHE_HOME; or echo $HOME/.cache'
    return (
        {
            variable: f'"${{XDG_CACHE_HOME:-$HOME/.cache}}/{own}/{folder}"'
            for variable, folder in CACHE_VARIABLES.items()
        },
        {variable: f"({base})/{own}/{folder}" for variable, folder in CACHE_VARIABLES.items()},
    )


def _quote_fish(text: str) -> str:
    """A word of fish, where a backslash counts within single quotes, unlike in sh."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
