"""Agents for tests: the real one as a child process, and ones that say what a test wants."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.bundle import make_bundle
from builder.session import Session
from builder.transports.connection import Connection
from builder.transports.local import LocalTransport
from tests.support.projects import base_python

if TYPE_CHECKING:
    from pathlib import Path

    from builder.bundle import Bundle

AGENT_PATH = os.pathsep.join([os.fspath(base_python().parent), "/usr/bin", "/bin"])


def local_session(store: Path, *, path: str = AGENT_PATH) -> Session:
    """A session with the real agent on this machine."""
    transport = LocalTransport(host="here", environ={"PATH": path, "HOME": os.fspath(store.parent)})
    return Session(transport, make_bundle(), store=os.fspath(store))


@dataclass(frozen=True)
class ScriptedTransport:
    """A host whose agent is a program of the test: Python, with `say(message)`, `hear()`, `hello()` and `raw(bytes)`."""

    script: str
    host: str = "h9"

    def start(self, bundle: Bundle, store: str) -> Connection:
        code = HELPERS.format(digest=bundle.sha256) + self.script
        return Connection([sys.executable, "-I", "-S", "-c", code], {"PATH": os.defpath})

    def explain(self, returncode: int | None, stderr: str) -> tuple[str, str]:
        return f"`{self.host}`: rc {returncode}: {stderr}", ""


HELPERS = """
import json, os, sys, time
def raw(text):
    while text:
        text = text[os.write(1, text):]
def say(message):
    raw(json.dumps(message).encode() + b"\\n")
def hear():
    while True:
        message = json.loads(sys.stdin.readline() or "{{}}")
        if not message:
            sys.exit(0)
        if "alive" not in message:
            return message
def hello(**more):
    say({{"hello": {{"protocol": 1, "agent": "{digest}", "store": "/opt/envspec", **more}}}})
"""


def scripted_session(script: str) -> Session:
    """A session with an agent that a test wrote."""
    return Session(ScriptedTransport(script), make_bundle())
