"""The verbs put together, and errors turned into messages and exit codes."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import sys
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError, Parameter

from envspec import __version__
from envspec.cli import EndedError
from envspec.cli.output import print_error, ready_stdout, tell
from envspec.errors import COULD_NOT_LOOK, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Sequence

SIGNALLED = 128
"""What a shell adds to the number of a signal, for the exit code."""

SUMMARY = (
    "Reproducible GPU environments: declared, locked, built identically on every host, proven before they go live."
)

VERBS = {
    "lock": ("lock:lock", "Resolve, patch, measure, check, and write the lock beside the spec."),
    "check": ("check:check", "Judge the lock: do its binaries fit together, and fit the hosts?"),
    "diff": (
        "diff:diff",
        "Say what a change of the lock does: to hosts, GPUs and drivers first, then to packages, patches and waivers.",
    ),
    "why": ("why:why", "Show who asks for a locked package, and the chains that lead from the spec to it."),
    "tree": ("why:tree", "Show what asks for what, from the spec down."),
    "size": (
        "size:size",
        "Show what takes the space of the locked environment: per package, per kind of file, GPU code per architecture.",
    ),
    "build": ("build:build", "Build the locked environment on this machine or on hosts, prove it, and make it active."),
    "status": ("status:status", "Show the active environment, here or on hosts, and what differs from what was built."),
    "verify": (
        "verify:verify",
        "Prove the active environment again, here or on hosts: its tree, its imports, and its kernels on the GPUs.",
    ),
    "diagnose": (
        "diagnose:diagnose",
        "Say why a venv does not work, whoever made it: the causes with their evidence, what is not the cause, and what mends it.",
    ),
    "receipts verify": (
        "receipts:verify",
        "Check receipts: their one form, that they do not contradict themselves, and who signed them.",
    ),
    "receipts list": ("receipts:list_receipts", "List the receipts in the store and beside the spec, oldest first."),
    "receipts show": (
        "receipts:show",
        "Show a receipt: the machine, each probe with its cases and figures, and what it claims on which ground.",
    ),
    "generations": (
        "generations:generations",
        "List the environments that were active, here or on hosts, oldest first.",
    ),
    "rollback": ("generations:rollback", "Make an earlier generation the active one, here or on hosts, in one step."),
    "copy": (
        "copy:copy",
        "Copy the wheels of the lock from one host to others; nothing is built.",
    ),
    "cache push": ("cache:push", "Put the wheels of the lock into a cache, patched ones included: only what it lacks."),
    "cache pull": (
        "cache:pull",
        "Bring the wheels of the lock from caches into the store; no index is asked, and nothing is built.",
    ),
    "cache check": (
        "cache:check",
        "Say what caches have of the lock: what is there, what is missing, what is damaged.",
    ),
    "cache gc": (
        "cache:gc",
        "Remove wheels from a cache that no lock names: neither one that was pushed there, nor the one here.",
    ),
    "gc": (
        "gc:gc",
        "Remove environments, trees and wheels that no generation and no running process uses, here or on hosts.",
    ),
    "export": (
        "export:export",
        "Write the lock for other tools: pylock.toml, requirements with hashes, a bill of materials, an OCI image, or a bundle.",
    ),
    "git install": (
        "git:install",
        "Set up the diff driver and the merge driver for the locks of this repository.",
    ),
    "git uninstall": (
        "git:uninstall",
        "Take the drivers out of .gitattributes and of the configuration of this clone.",
    ),
    "git merge-driver": (
        "git:merge_driver",
        "Merge a lock for git: made anew from the merged spec with the wheels of both sides, or refused.",
    ),
    "git diff-driver": (
        "git:diff_driver",
        "Show a change of a lock for `git diff`: as `envspec diff` does, or line by line where that cannot read a side.",
    ),
    "overlay edit": ("overlay:edit", "Make a git work tree of the locked base wheel, with one commit a patch."),
    "overlay save": ("overlay:save", "Write the commits of the work tree back as the patch series."),
    "overlay rebase": (
        "overlay:rebase",
        "Carry the commits of the work tree to another version of the package, three-way.",
    ),
    "adopt": (
        "adopt:adopt",
        "Turn a hand-made venv into a spec, patches and a report: what of it `envspec build` reproduces, and what not.",
    ),
    "run": ("run_command:run", "Run a program in the active environment; its exit code is passed through."),
}
"""Verb -> module and function in `envspec.cli`, and what `envspec --help` says: a verb's module is imported only when the verb is used."""

GROUPS = {
    "cache": "Caches of wheels, near the hosts: push, pull, check, gc.",
    "receipts": "The evidence of builds and verifications: verify, list, show.",
    "git": "Make git show and merge locks: install, uninstall; git itself calls the drivers.",
    "overlay": "Work on a patch series in a git work tree: edit, save, rebase.",
}
"""The first word of verbs of two words, and what `envspec --help` says of them all."""


def make_app(arguments: Sequence[str] = ()) -> App:
    """The command line, with nothing imported yet that a verb needs.

    Args:
        arguments: Of the command line. Where they name a verb, its own docstring is its help; else the summaries stand for all.
    """
    words = " ".join(arguments)
    overview = not any(verb in arguments or words.startswith(verb) for verb in VERBS)
    app = _make_group("envspec", help_text=SUMMARY)
    groups: dict[str, App] = {}
    for position, (verb, (place, summary)) in enumerate(VERBS.items()):
        group, _, name = verb.rpartition(" ")
        if group and group not in groups:
            groups[group] = _make_group(group, help_text=GROUPS[group], sort_key=position)
            app.command(groups[group])
        parent = groups[group] if group else app
        parent.command(f"envspec.cli.{place}", name=name, help=summary if overview else None, sort_key=position)
    return app


def _make_group(name: str, *, help_text: str, sort_key: int | None = None) -> App:
    return App(
        name=name,
        help=help_text,
        version=__version__,
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(show_default=False),
        sort_key=sort_key,
    )


def run(arguments: Sequence[str]) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name.

    Returns:
        The exit code.
    """
    ready_stdout()
    ours = list(itertools.takewhile(lambda argument: argument != "--", arguments))
    if "--line" not in ours:
        return _run(arguments, ours, node="")
    from envspec.cli.nodes import NodeLines, node_name  # noqa: PLC0415 - only where it is asked for

    node = node_name(os.environ)
    lines = NodeLines(sys.stderr, node)
    with contextlib.redirect_stderr(lines):
        code = _run(arguments, ours, node=node)
    lines.flush()
    return code


def _run(arguments: Sequence[str], ours: list[str], *, node: str) -> int:
    as_json = "--json" in ours
    if not os.environ.get("ENVSPEC_STORE"):
        os.environ.pop("ENVSPEC_STORE", None)  # an empty variable is none, and not the current folder
    try:
        result = make_app(arguments)(list(arguments), exit_on_error=False, print_error=False, help_on_error=False)
        sys.stdout.flush()
    except EnvspecError as error:
        print_error(error, as_json=as_json, node=node)
        return error.exit_code
    except CycloptsError as error:
        print_error(_from_usage_error(error, ours), as_json=as_json, node=node)
        return COULD_NOT_LOOK
    except EndedError as error:
        tell("ended; nothing was activated")
        return SIGNALLED + error.number
    except KeyboardInterrupt:
        tell("interrupted; nothing was activated")
        return SIGNALLED + signal.SIGINT
    except BrokenPipeError:
        return COULD_NOT_LOOK
    except OSError as error:
        print_error(_from_os_error(error), as_json=as_json, node=node)
        return COULD_NOT_LOOK
    except MemoryError:
        print_error(
            EnvspecError("there is not enough memory", hint="end other programs, or raise the limit"),
            as_json=as_json,
            node=node,
        )
        return COULD_NOT_LOOK
    except Exception as error:
        if os.environ.get("ENVSPEC_TRACEBACK"):
            raise
        print_error(
            EnvspecError(
                f"this is a bug in envspec: {type(error).__name__}: {error}",
                hint="report it with the traceback that ENVSPEC_TRACEBACK=1 shows",
            ),
            as_json=as_json,
            node=node,
        )
        return COULD_NOT_LOOK
    finally:
        _settle_stdout()
    return result if isinstance(result, int) else 0


def _settle_stdout() -> None:
    """Print what is left; what nobody takes is dropped, so that the interpreter does not try again and complain at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _from_usage_error(error: CycloptsError, arguments: Sequence[str]) -> EnvspecError:
    hint = "`envspec --help` and `envspec VERB --help` say what there is"
    if arguments[:1] == ["run"]:
        hint = "the program and its arguments come after `--`: `envspec run -- python -V`"
    return EnvspecError(" ".join(str(error).split()), hint=hint)


def _from_os_error(error: OSError) -> EnvspecError:
    hints = {
        errno.ENOSPC: "free some space (`envspec gc` removes what nothing uses), or give another store with `--store`",
        errno.EROFS: "give a store that can be written with `--store PATH` or ENVSPEC_STORE",
        errno.EACCES: "run as the user that the store belongs to, or give another with `--store PATH`",
        errno.EXDEV: "put `trees`, `bytecode`, `envs` and `.tmp` of the store on one file system: they share files by hard links",
        errno.EDQUOT: "free some space in the store, or raise the quota",
    }
    place = f": `{error.filename}`" if error.filename else ""
    return EnvspecError(f"{error.strerror or error}{place}", hint=hints.get(error.errno or 0, ""))
