"""What an environment is: values and pure functions, without any effect.

Nothing in this package starts a process, opens a socket, reads a clock or looks at the environment, except `envspec.cli`, the command line,
which is the only place that knows both these values and the `builder` that brings them about.

This file stays importable by CPython 3.10 with the standard library alone, because the agent on a host carries some of these modules.
"""

__version__ = "0.1.0"
