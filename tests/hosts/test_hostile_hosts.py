"""What a host may say: nothing of it reaches another host, this machine's files, or its memory. No sshd is needed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.hosts.test_host_builds import hosts_of
from tests.support.hostile import FakeHosts
from tests.support.projects import snapshot_of

if TYPE_CHECKING:
    from tests.support.projects import Project

# Plays an honest host up to the call of a name, and then says what a test wants.
UNTIL = """
def answers(name, *messages, **results):
    call = hear()
    while call.get("call") != name:
        say({"id": call["id"], "result": results.get(call["call"], {})})
        call = hear()
    for message in messages:
        say({"id": call["id"], **message})
    while sys.stdin.readline():
        pass
FACTS = {
    "hostname": "h1", "user": "root", "uid": 0, "system": "x", "kernel": "6", "machine": os.uname().machine, "glibc": "2.40",
    "time_s": time.time(), "agent_python": {"path": "/x", "version": "3.11.2"}, "rejected_pythons": [],
    "interpreter": {"path": "/x", "version": "%d.%d.%d" % sys.version_info[:3]},
    "driver": "", "cuda_driver": "", "gpus": [], "libraries": {}, "notes": [],
    "tools": {"c_compiler": "", "cxx_compiler": "", "python_headers": "", "nvcc": ""},
    "store": {"path": "/opt/envspec", "exists": True, "problem": "", "owner_uid": 0, "free_bytes": 10**12, "free_inodes": 10**9,
              "inodes": 10**9, "filesystem": "ext4", "read_only": False, "writable": True, "links": "hardlink"},
}
hello()
"""
NOT_BUILT = 'built={"outcome": None}, facts=FACTS, missing={"missing": []}'


@pytest.fixture
def hosts(locked: Project) -> FakeHosts:
    """`h0` is honest, `h1` is what a test makes of it."""
    return FakeHosts(locked, "h0", "h1")


OUTCOME = (
    '{"env": "a" * 32, "site": "1" * 64, "path": "/x", "generation": 1, "built": True, "activated": True, "verified": True, '
    '"probes": [], "seconds": {}}'
)


def wish(row: str) -> str:
    """A host that asks for something."""
    return f'answers("build", {{"event": {{"need": [{row}]}}}}, {NOT_BUILT})'


# What a host does, and what is said of it.
LIES = (
    ('answers("built", {"result": {"outcome": 5}})', "gave an answer about its build that is none"),
    ('answers("built", {"result": {}})', "about its build"),
    (f'answers("built", {{"result": {{"outcome": {OUTCOME}}}}})', "says that it built aaaa"),
    ('answers("facts", {"result": {}}, built={"outcome": None})', "gave an answer about itself that is none"),
    ('answers("facts", {"result": {**FACTS, "time_s": 1e999}}, built={"outcome": None})', "a number that is none"),
    ('answers("facts", {"result": {**FACTS, "gpus": 10**400}}, built={"outcome": None})', "about itself"),
    (f'answers("missing", {{"result": {{"missing": ["../../etc/passwd"]}}}}, {NOT_BUILT})', "not in the lock"),
    (f'answers("missing", {{"result": {{"missing": ["x"] * 100000}}}}, {NOT_BUILT})', "about wheels"),
    (f'answers("build", {{"event": {{"need": 5}}}}, {NOT_BUILT})', "does not speak"),
    (wish('{"sha256": "0" * 64, "offset": 0, "damaged": False}'), "0000"),
    (wish('{"sha256": "../x", "offset": 0, "damaged": False}'), "../x"),
    (wish('{"sha256": SHA, "offset": -1, "damaged": False}'), "asks for a wheel in an odd way"),
    (wish('{"sha256": SHA, "offset": 10**18, "damaged": False}'), "asks for a wheel in an odd way"),
    (wish('{"sha256": SHA, "offset": "0", "damaged": False}'), "does not speak"),
    (wish('{"sha256": SHA}'), "does not speak"),
    (wish("SHA"), "does not speak"),
    (
        f'answers("build", {{"result": {{"outcome": {OUTCOME}, "reused": [], "not_reused": []}}}}, {NOT_BUILT})',
        "says that it built",
    ),
    (f'answers("build", {{"result": {{}}}}, {NOT_BUILT})', "about its build"),
    (f'answers("build", {{"error": {{"message": "x" * 10**7}}}}, {NOT_BUILT})', "xxx"),
    (f'answers("build", *[{{"event": {{"note": "y" * 10**5}}}}] * 3000, {NOT_BUILT})', "more than"),
    (f'answers("build", {{"result": {"[" * 40 + "]" * 40}}}, {NOT_BUILT})', "more than 12 levels"),
    ('raw(b"{" * (20 << 20))', "a line of more than"),
    ("while True: raw(b'welcome' * 1000 + b'\\n')", "does not speak"),
)


MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def test_hosts_that_lie_fail_alone(locked: Project) -> None:
    """All of them at once, beside one that is honest."""
    sha256 = next(path.name for path in (locked.store / "wheels").iterdir() if len(path.name) == 64)
    names = [f"liar{number}" for number in range(len(LIES))]
    hosts = FakeHosts(locked, "honest", *names)
    for name, (script, _) in zip(names, LIES, strict=True):
        hosts.script(name, f"SHA = {sha256!r}\n{UNTIL}{script}")
    before = snapshot_of(locked.store / "wheels")
    peak = locked.folder / "peak"
    ran = locked.run(
        "build", "--all", "--json", "--jobs", "8", before=[sys.executable, "-c", MEASURED, os.fspath(peak)]
    )
    records = hosts_of(ran)
    assert ran.code == 1
    assert records["honest"]["built"]
    for name, (script, message) in zip(names, LIES, strict=True):
        assert message in records[name]["error"]["message"], script
        assert "bug" not in records[name]["error"]["message"], script
        assert records[name]["traffic"]["sent_bytes"] < 20_000, script
    assert len(ran.text) < 200_000
    assert snapshot_of(locked.store / "wheels") == before
    assert [path.name for path in (locked.store / "receipts").glob("*/*@*")] == ["demo@honest.build.json"]
    assert int(peak.read_text()) < 300 << 10  # kB: 16 MiB a line, for eight at once


def test_one_wheel_is_not_sent_for_ever(locked: Project, hosts: FakeHosts) -> None:
    """A host that asks for one wheel again and again gets it three times."""
    wheel = max((locked.store / "wheels").glob("*/*.whl"), key=lambda path: path.stat().st_size)
    row = f'{{"sha256": "{wheel.parent.name}", "offset": 0, "damaged": True}}'
    hosts.script("h1", UNTIL + f'answers("build", *[{{"event": {{"need": [{row}]}}}}] * 50, {NOT_BUILT})')
    (record,) = locked.run("build", "--host", "h1", "--json").json()["hosts"]
    assert "asks for a wheel in an odd way" in record["error"]["message"]


STATUS = (
    '{"generation": {"number": 1, "env": ENV, "site": "\\x1b[2Jsite", "created": "now", "active": True, "path": "/x", "there": True}, '
    '"drift": [{"path": "../../../etc/passwd\\x1b]0;x\\x07", "kind": "modified", "detail": None, "owner": None}], '
    '"python": {"version": "3", "path": "/x"}, "verification": None}'
)


def test_what_hosts_say_of_themselves_is_shown_and_steers_nothing(locked: Project) -> None:
    envs = ["a" * 32, "../../../../etc", "x\ny", "\x1b[2J"]
    hosts = FakeHosts(locked, *(f"h{number}" for number in range(len(envs))))
    proof = '{"env": ENV, "site": "s", "path": "/x", "generation": 1, "drift": [], "probes": [], "seconds": {}}'
    before = snapshot_of(locked.store)
    for verb, script in (
        ("status", f'answers("facts", {{"result": FACTS}}, status={STATUS})'),
        ("verify", f'answers("verify", {{"result": {proof}}})'),
    ):
        for number, env in enumerate(envs):
            hosts.script(f"h{number}", f"{UNTIL}ENV = {env!r}\n{script}")
        ran = locked.run(verb, "--all")
        assert ran.code == 1
        assert "\x1b" not in ran.text
        assert "\x07" not in ran.text
    new = {path for path in snapshot_of(locked.store) if path not in before}
    assert new == set()  # none of them has a receipt that is one


def test_status_names_a_tree_that_is_not_the_locks_under_the_locked_id(locked: Project, hosts: FakeHosts) -> None:
    locked.good("build", "--host", "h0")
    env = hosts_of(locked.good("status", "--host", "h0", "--json"))["h0"]["env"]
    hosts.script("h1", UNTIL + f'ENV = {env!r}\nanswers("facts", {{"result": FACTS}}, status={STATUS})')
    ran = locked.run("status", "--all")
    assert ran.code == 1
    assert "site differs:" in ran.stdout
    assert "env differs" not in ran.stdout


@pytest.mark.parametrize("lie", ["other", "long", "endless"])
def test_wheel_that_a_host_lends_is_believed_by_its_digest_alone(locked: Project, hosts: FakeHosts, lie: str) -> None:
    path = next((locked.store / "wheels").glob("*/alpha-*.whl"))
    size, sha256 = path.stat().st_size, path.parent.name
    path.unlink()
    give = {
        "other": f'say({{"id": call["id"], "raw": {size}}}); raw(b"x" * {size})',
        "long": f'say({{"id": call["id"], "raw": {10**12}}})\nwhile True: raw(b"x" * 65536)',
        "endless": f'say({{"id": call["id"], "raw": {size}}})\nwhile True: raw(b"x" * 65536)',
    }[lie]
    hosts.script(
        "h1",
        UNTIL
        + f"""
while True:
    call = hear()
    if call["call"] == "wheels":
        say({{"id": call["id"], "result": {{"there": [{sha256!r}]}}}})
    elif call["call"] == "pass_on":  # a lie: it passed nothing on
        say({{"id": call["id"], "result": {{"received": call["with"]["only"]}}}})
    else:
        {give.replace(chr(10), chr(10) + "        ")}
        say({{"id": call["id"], "result": {{}}}})
""",
    )
    ran = locked.run("copy", "--from", "h1", "--to", "h0", "--json")
    record = hosts_of(ran)["h0"]
    assert ran.code == 1
    assert "error" in record
    for store in (locked.store, hosts.store("h0")):
        assert list(store.glob("wheels/*/alpha-*")) == []
    assert locked.leftovers() == []
