"""The command line: one file a verb. The only place that prints, exits, and knows both the values and the effects.

Data goes to stdout, talk and progress to stderr. Exit 0 is good, 1 "looked and found wrong", 2 "could not look". Modules are imported by the
verb that needs them, so that a build of what is there already costs little more than the interpreter.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line with this process's arguments."""
    from envspec.cli.app import run  # noqa: PLC0415 - imported late, like every verb

    sys.exit(run(sys.argv[1:]))
