"""A traced run on a real host over ssh: what was raised there is told here, a hang is ended there, and nothing is left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from builder.bundle import make_bundle
from builder.session import Session
from builder.tracing import trace
from builder.transports.ssh import SshTransport
from tests.support.projects import base_python

if TYPE_CHECKING:
    from envspec.traced import Traced
    from tests.support.fleet import Fleet, FleetHost

CWD = "/opt/envspec/app"


@pytest.fixture
def host(fleet: Fleet) -> FleetHost:
    host = fleet.hosts[0]
    folder = host.opt / "envspec/app"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text("try:\n    import lame\nexcept OSError:\n    pass\nimport needy\n", encoding="utf-8")
    (folder / "lame.py").write_text("raise OSError('x.so: cannot open shared object file')\n", encoding="utf-8")
    (folder / "needy.py").write_text("import pybase65\n", encoding="utf-8")
    (folder / "waits.py").write_text("import threading\nthreading.Event().wait()\n", encoding="utf-8")
    host.ssh("chmod -R a+rX /opt/envspec")
    return host


def run(fleet: Fleet, name: str, target: str, *, timeout_s: float = 60.0) -> Traced:
    environ = {**os.environ, "ENVSPEC_SSH_CONFIG": os.fspath(fleet.ssh_config)}
    with Session(SshTransport(host=name, alias=name, environ=environ), make_bundle()) as session:
        return trace(target, os.fspath(base_python()), environ={}, session=session, cwd=CWD, timeout_s=timeout_s)


@pytest.mark.parametrize("user", ["", "-worker"])
def test_what_was_raised_there_is_told_and_nothing_is_left(fleet: Fleet, host: FleetHost, user: str) -> None:
    before = sorted(host.opt.rglob("*"))
    traced = run(fleet, f"h0{user}", "app")
    assert [(each.type, each.name, each.importing) for each in traced.chain] == [
        ("ModuleNotFoundError", "pybase65", ("app", "needy"))
    ]
    assert [each.message for each in traced.swallowed] == ["x.so: cannot open shared object file"]
    assert dict(traced.modules).keys() & {"app", "needy", "lame"} == set()
    assert traced.chain[0].frames[0].file == f"{CWD}/app.py"
    assert sorted(host.opt.rglob("*")) == before


def test_hang_is_ended_there(fleet: Fleet, host: FleetHost) -> None:
    traced = run(fleet, "h0", "waits", timeout_s=1.0)
    assert (traced.ending, traced.detail) == ("timeout", "no end after 1 s")
    assert traced.chain[0].frames[0][:2] == (f"{CWD}/waits.py", 2)
    assert host.processes("envspec trace") == []
