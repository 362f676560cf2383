"""Venvs of hosts: the answer is the one that this machine would give, and what is no answer is refused, whatever a host sends."""

from __future__ import annotations

import json
import os
import zlib
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder import observing
from builder.agent import survey_wire
from builder.agent.survey import Survey
from builder.agent.survey_wire import deflated, inflated
from builder.hosts import Target
from builder.observing import observe, read_observation
from builder.transports.local import LocalTransport
from envspec.errors import EnvspecError
from envspec.observation_checks import checked_observation
from envspec.observed import Observation, ObservedFile, observation_from_json, observation_to_json
from envspec.spec import HostSpec
from tests.builder.test_bundle import pythons
from tests.support.agents import AGENT_PATH, ScriptedTransport
from tests.support.fatbins import Code, fatbin
from tests.support.shared_objects import needs_gcc, shared_object
from tests.support.tiny_elf import tiny_library
from tests.support.venvs import SITE, install, make_venv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.transports.connection import Transport


def target(transport: Transport) -> Target:
    return Target(spec=HostSpec(name="h9", ssh="h9"), transport=transport)


def here(home: Path) -> Target:
    return target(LocalTransport(host="h9", environ={"PATH": AGENT_PATH, "HOME": os.fspath(home)}))


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    made = make_venv(tmp_path / "venv")
    install(
        made,
        "demo",
        "1.0",
        {
            "demo/__init__.py": "x\n",
            "demo/a.so": tiny_library(soname="a", exports=["f"]),
            "demo/version.py": "cuda = '13.0'\n",
        },
    )
    (made / SITE / "demo/__init__.py").write_text("edited\n")
    (made / SITE / os.fsdecode(b"not-\xff-utf8\x1b.py")).write_text("stray\n")
    return made


def comparable(observation: Observation) -> Observation:
    """Without what differs between two processes here."""
    return replace(observation, environ={}, libraries={}, path=())


# -- the same, here and there ---------------------------------------------------------------------------------------------------------


def test_agent_sees_what_this_process_sees_and_leaves_nothing(venv: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    there = observe(os.fspath(venv), host=here(home))
    assert comparable(there) == comparable(observe(os.fspath(venv), remember=False))
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.resolve().name)
def test_every_cpython_from_3_10_on_sees_the_same(venv: Path, tmp_path: Path, python: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(python)
    environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": os.fspath(tmp_path)}
    there = observe(os.fspath(venv), host=target(LocalTransport(host="h9", environ=environ)))
    assert comparable(there) == comparable(observe(os.fspath(venv), remember=False))


@needs_gcc
def test_cubins_that_a_host_cannot_inflate_are_read_here(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    content = fatbin(Code("sm_100f", release="13.0.88", compression="zstd"), Code("sm_90", release="12.9.86"))
    install(
        venv,
        "demo",
        "1.0",
        {"demo/gpu.so": shared_object("int f(void) { return 1; }", sections={".nv_fatbin": content})},
    )
    there = observe(os.fspath(venv), host=here(tmp_path))
    (binary,) = there.distributions[0].binaries.binaries
    assert binary.gpu is not None
    assert binary.gpu.releases == ("12.9.86", "13.0.88")
    assert comparable(there) == comparable(observe(os.fspath(venv), remember=False))


def test_what_is_no_venv_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(EnvspecError, match="is not there"):
        observe(f"{tmp_path}/none", host=here(tmp_path))


class Recorder:
    """A reporter that keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.bars: list[list[int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def stage(self, label: str, *, total: int, unit: str) -> Iterator[Any]:
        assert (label, unit) == ("reading", "bytes")
        bar = [total]
        self.bars.append(bar)
        yield bar.append


@pytest.mark.parametrize("there", [False, True])
def test_progress_is_told_in_bytes(venv: Path, tmp_path: Path, there: bool) -> None:  # noqa: FBT001
    recorder = Recorder()
    observation = observe(os.fspath(venv), host=here(tmp_path) if there else None, reporter=recorder, remember=False)
    ((total, *steps),) = recorder.bars
    assert total == observation.bytes_read > 0
    assert 0.99 * total <= sum(steps) <= total  # a host does not tell the smallest steps
    assert any("looking at" in note for note in recorder.notes)


# -- the wire -------------------------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=3), max_size=8),
    st.integers(1, 64),
)
def test_lines_arrive_however_they_are_cut(records: list[dict[str, Any]], size: int) -> None:
    content = zlib.compress(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    chunks = [content[at : at + size] for at in range(0, len(content), size)]
    assert list(inflated(chunks)) == records


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no zlib", "cannot be inflated"),
        (zlib.compress(b"{}\n")[:-3], "is cut off"),
        (zlib.compress(b"{}"), "is cut off"),
        (zlib.compress(b"{}\n") + b"x", "goes on after its end"),
        (zlib.compress(b"[]\n"), "is no object"),
        (zlib.compress(b"[" * 200_000 + b"\n"), "too many levels"),
        (zlib.compress(bytes(3000)), "a line of more than 2000 bytes"),
        (zlib.compress(b"{}\n" * 2000), "comes to more than 5000 bytes"),
    ],
)
def test_what_is_no_answer_is_refused(monkeypatch: pytest.MonkeyPatch, content: bytes, message: str) -> None:
    monkeypatch.setattr(survey_wire, "LINE_LIMIT_BYTES", 200_001 if b"[" in zlib_text(content) else 2000)
    monkeypatch.setattr(survey_wire, "INFLATED_LIMIT_BYTES", 300_000 if b"[" in zlib_text(content) else 5000)
    with pytest.raises(ValueError, match=message):
        list(inflated([content]))


def zlib_text(content: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(content)
    except zlib.error:
        return b""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What an honest host sends."""
    made = make_venv(tmp_path_factory.mktemp("answer") / "venv")
    install(
        made,
        "demo",
        "1.0",
        {"demo/__init__.py": "x\n", "demo/a.so": tiny_library(soname="a", exports=["f"]), "h.pth": "import x\n"},
    )
    observation = observe(os.fspath(made), remember=False)
    return b"".join(deflated(Survey(observation, {})))


def lines_of(answer: bytes) -> list[dict[str, Any]]:
    return list(inflated([answer]))


def read(records: list[dict[str, Any]]) -> Observation:
    content = zlib.compress(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    return read_observation(len(content), iter([content]))


FILE = ["x.py", "file", 1, "0" * 64, False, "", -1, 0, 1, ""]


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (0, "packed", 3),
        (0, "packed", {f"{SITE}/demo/a.so": [[1, 5]]}),
        (1, "observer", 0),
        (1, "distributions", -1),
        (1, "distributions", 2),
        (1, "distributions", 10**9),
        (1, "distributions", "1"),
        (1, "prefix", 3),
        (1, "notes", "text"),
        (1, "notes", [3]),
        (1, "files_seen", -1),
        (1, "files_seen", 10**30),
        (1, "files_seen", True),
        (1, "environ", {"LD_LIBRARY_PATH": 3}),
        (1, "environ", []),
        (1, "libraries", {"a": None}),
        (1, "host", {}),
        (1, "host", {"glibc": "2", "driver": "", "cuda": "", "system": "", "hostname": "", "gpus": [3]}),
        (1, "locked", {"env": []}),
        (1, "sites", ["../.."]),
        (1, "path", [["/x", "venv", 1]]),
        (1, "python", {}),
        (1, "strays", [["x.py", "file"]]),
        (1, "strays", [[3, *FILE[1:]]]),
        (1, "strays", [["../x.py", *FILE[1:]]]),
        (1, "strays", [["a/../x.py", *FILE[1:]]]),
        (1, "strays", [["a//x.py", *FILE[1:]]]),
        (1, "strays", [["a\0", *FILE[1:]]]),
        (1, "strays", [["", *FILE[1:]]]),
        (1, "strays", [["/", *FILE[1:]]]),
        (1, "strays", [["x" * 10_000, *FILE[1:]]]),
        (1, "strays", [["x.py", "nothing", *FILE[2:]]]),
        (1, "strays", [["x.py", "file", 1.5, *FILE[3:]]]),
        (1, "strays", [["x.py", "file", -2, *FILE[3:]]]),
        (1, "strays", [["x.py", "file", 1, "G" * 64, *FILE[4:]]]),
        (1, "strays", [["x.py", "file", 1, "0" * 63, *FILE[4:]]]),
        (1, "strays", [[*FILE[:4], 1, *FILE[5:]]]),
        (1, "stray_hooks", [["x", "0", []]]),
        (1, "stray_hooks", [["x", "", [3]]]),
        (1, "stray_binaries", {}),
        (2, "name", 3),
        (2, "folder", "/etc"),
        (2, "folder", "../x"),
        (2, "requested", "yes"),
        (2, "requires_dist", "torch"),
        (2, "scripts", [["a"]]),
        (2, "files", [[*FILE, "more"]]),
        (2, "hooks", [[3, "", []]]),
        (2, "binaries", {"binaries": [{"path": 3}]}),
        (2, "binaries", {"binaries": [{"path": "../../x"}]}),
    ],
)
def test_value_of_another_kind_is_refused(answer: bytes, line: int, key: str, value: Any) -> None:
    records = lines_of(answer)
    assert read(records) == read_observation(len(answer), iter([answer]))
    if line == 2 and key == "binaries":
        value = {**records[2]["binaries"], **value}
    records[line][key] = value
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        read(records)


def test_more_or_fewer_lines_than_announced_are_refused(answer: bytes) -> None:
    records = lines_of(answer)
    for others in (records[:-1], [*records, records[-1]], records[:1], []):
        with pytest.raises(ValueError, match=r"cut off|more distributions"):
            read(others)


def test_answer_that_is_too_large_is_not_even_taken(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    monkeypatch.setattr(survey_wire, "DEFLATED_LIMIT_BYTES", 10)
    with pytest.raises(ValueError, match="at most 10 are taken"):
        read_observation(len(answer), iter([answer]))


@settings(max_examples=200)
@given(st.data())
def test_bytes_that_changed_on_the_way_give_an_observation_or_a_refusal(answer: bytes, data: st.DataObject) -> None:
    text = bytearray(zlib.decompress(answer))
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    content = zlib.compress(bytes(text))
    try:
        observation = read_observation(len(content), iter([content]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return
    assert checked_observation(observation) is observation


def test_checks_know_every_field(answer: bytes) -> None:
    """What this machine sees is an observation, and so is what comes of it as JSON."""
    observation = read_observation(len(answer), iter([answer]))
    assert checked_observation(observation_from_json(observation_to_json(observation))) == observation
    odd = replace(
        observation, strays=(ObservedFile("/outside", "link", -1, "", executable=False, recorded="", recorded_size=-1),)
    )
    assert checked_observation(odd) is odd


# -- hosts that are not what they should be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('say({"id": call["id"], "result": {}})', "`h9` sent no observation"),
        ('say({"id": call["id"], "raw": 5}); raw(b"x" * 5)', "gave an answer about the venv that is none"),
        ('say({"id": call["id"], "raw": 10**12}); raw(b"x")', "at most"),
        ('say({"id": call["id"], "raw": -5}); say({"id": call["id"], "result": {}})', "is cut off"),
        ('say({"id": call["id"], "raw": "x"})', "does not speak as an agent does"),
        ('say({"id": call["id"], "error": {"message": "\\x1b[2Jno"}})', r"\\x1b\[2Jno"),
        ('say({"id": call["id"], "raw": 100}); raw(b"x" * 50); sys.exit(1)', "was lost|that is none"),
    ],
)
def test_host_that_answers_something_else_is_named(script: str, message: str) -> None:
    transport = ScriptedTransport(f"hello()\ncall = hear()\n{script}\nhear()\n")
    with pytest.raises(EnvspecError, match=message):
        observe("/x", host=target(transport))


def test_second_answer_is_refused(answer: bytes) -> None:
    script = (
        "hello()\ncall = hear()\n"
        f"content = bytes.fromhex({answer.hex()!r})\n"
        'for _ in range(2):\n    say({"id": call["id"], "raw": len(content)}); raw(content)\nhear()\n'
    )
    with pytest.raises(EnvspecError, match="a second observation"):
        observe("/x", host=target(ScriptedTransport(script)))


def test_limits_are_wide_enough_for_what_is_real() -> None:
    assert observing.MOST_DISTRIBUTIONS > 1000
    assert survey_wire.DEFLATED_LIMIT_BYTES > 4 * (25 << 20)
