"""The verbs put together, and errors turned into messages and exit codes."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

import typer
import typer.exceptions

from envspec.cli import build, gc, generations, lock, run_command, status, verify
from envspec.cli.output import print_error
from envspec.errors import COULD_NOT_LOOK, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130

app = typer.Typer(
    name="envspec",
    help="Reproducible GPU environments: declared, locked, built identically on every host, proven before they go live.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("lock")(lock.lock)
app.command("build")(build.build)
app.command("status")(status.status)
app.command("verify")(verify.verify)
app.command("generations")(generations.generations)
app.command("rollback")(generations.rollback)
app.command("gc")(gc.gc)
app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(run_command.run)


def run(arguments: Sequence[str]) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name.

    Returns:
        The exit code.
    """
    as_json = "--json" in arguments
    try:
        result = app(list(arguments), standalone_mode=False)
    except EnvspecError as error:
        print_error(error, as_json=as_json)
        return error.exit_code
    except typer.exceptions.TyperException as error:
        print_error(
            EnvspecError(error.format_message(), hint="`envspec --help` and `envspec VERB --help` say what there is"),
            as_json=as_json,
        )
        return COULD_NOT_LOOK
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted; nothing was activated", file=sys.stderr)  # noqa: T201 - the command line prints
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COULD_NOT_LOOK
    except OSError as error:
        print_error(_from_os_error(error), as_json=as_json)
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
        )
        return COULD_NOT_LOOK
    return int(result or 0)


def _from_os_error(error: OSError) -> EnvspecError:
    hints = {
        errno.ENOSPC: "free some space (`envspec gc` removes what nothing uses), or give another store with `--store`",
        errno.EROFS: "give a store that can be written with `--store PATH` or ENVSPEC_STORE",
        errno.EACCES: "run as the user that the store belongs to, or give another with `--store PATH`",
        errno.EDQUOT: "free some space in the store, or raise the quota",
    }
    place = f": `{error.filename}`" if error.filename else ""
    return EnvspecError(f"{error.strerror or error}{place}", hint=hints.get(error.errno or 0, ""))
