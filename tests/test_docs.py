"""The pages say what is so: links lead somewhere, vectors recompute, commands and checks exist."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomllib

from builder.agent.store import Store
from envspec.checks import registered_checks
from envspec.cli.app import GROUPS, VERBS, run
from envspec.layout import console_script, rewrite_script
from tests.conftest import DATA

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "overlays", "benchmarks")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

IDENTITY = ROOT / "docs" / "identity.md"
RECORDS = ROOT / "docs" / "adr"

_FENCE = re.compile(r"^(```+|~~~+)[^\n]*\n(.*?)^\1[ ]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`([^`\n]+)`")
_LABELLED = r"<!-- {} -->\n```\w+\n(.*?)```\n"

# `envspec` at the start of a command, behind a prompt or `uv run`.
_COMMAND = re.compile(r"^(?:\$ )?(?:uv run )?envspec\b(?: +([a-z]+))?([^#\n]*)", re.MULTILINE)
# Pages that may speak of verbs that are still to come.
_AHEAD = ("overlays/", "docs/checks/")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", text_of(page))


def blocks_of(page: Path) -> list[str]:
    return [match[2] for match in _FENCE.finditer(text_of(page))]


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ +(.*?) *$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def vectors(name: str) -> Any:
    """The labelled JSON block of the page on identity."""
    found = re.findall(_LABELLED.format(f"vectors: {name}"), text_of(IDENTITY), re.DOTALL)
    assert len(found) == 1, f"{len(found)} blocks are labelled {name}"
    return json.loads(found[0])


def encode(label: str, fields: list[list[str]]) -> bytes:
    """A record as the page defines it."""
    out = b"envspec\0" + label.encode() + b"\0"
    for field in fields:
        for text in field:
            out += str(len(text.encode())).encode() + b":" + text.encode()
    return out


def short_id(digest: bytes) -> str:
    return base64.b32encode(digest[:20]).decode().lower()


def escape(path: str) -> str:
    safe = re.compile(rb"[A-Za-z0-9!$%&'()+,\-./:;<=>@^_`{|}~]")
    pieces = (bytes([byte]) for byte in path.encode())
    return "".join(piece.decode() if safe.fullmatch(piece) else f"\\{piece[0]:03o}" for piece in pieces)


def manifest_of(entries: list[dict[str, Any]]) -> str:
    """A manifest as the page defines it."""
    lines = set()
    for entry in entries:
        path = entry["path"]
        for match in re.finditer("/", path):
            lines.add(f"./{escape(path[: match.start()])} type=dir\n")
        if entry["type"] == "file":
            mode = "0555" if entry["executable"] else "0444"
            lines.add(f"./{escape(path)} mode={mode} sha256={entry['sha256']} size={entry['size']} type=file\n")
        elif entry["type"] == "link":
            lines.add(f"./{escape(path)} link={escape(entry['target'])} type=link\n")
        else:
            lines.add(f"./{escape(path)} type=dir\n")
    return "#mtree\n. type=dir\n" + "".join(sorted(lines))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for target in _LINK.findall(prose_of(page)):
        place, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", place):
            continue
        path = page if not place else (page.parent / place).resolve()
        if not path.exists() or (anchor and anchor not in anchors_of(path)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("vector", vectors("records"), ids=lambda vector: vector["says"])
def test_a_published_record_recomputes(vector: dict[str, Any]) -> None:
    raw = encode(vector["label"], vector["fields"])
    assert raw.hex() == vector["hex"]
    assert hashlib.sha256(raw).hexdigest() == vector["sha256"]
    assert short_id(hashlib.sha256(raw).digest()) == vector["short_id"]


@pytest.mark.parametrize("vector", vectors("env-ids"), ids=lambda vector: vector["says"])
def test_a_published_env_id_recomputes(vector: dict[str, Any]) -> None:
    fields = [["python", vector["python"]], ["platform", vector["platform"]]]
    fields += [["wheel", f"{name} {patched or base}"] for name, base, patched in sorted(vector["wheels"])]
    fields += [["owner", f"{owner} {pattern}"] for pattern, owner in sorted(vector["owners"])]
    assert short_id(hashlib.sha256(encode("env 1", fields)).digest()) == vector["env"]


@pytest.mark.parametrize("vector", vectors("manifests"), ids=lambda vector: vector["says"])
def test_a_published_manifest_recomputes(vector: dict[str, Any]) -> None:
    assert manifest_of(vector["entries"]) == vector["manifest"]
    assert hashlib.sha256(vector["manifest"].encode("ascii")).hexdigest() == vector["sha256"]


@pytest.mark.parametrize("name", ["records", "env-ids", "manifests"])
def test_published_vectors_are_among_those_that_the_code_is_tested_with(name: str) -> None:
    tested = json.loads((DATA / "canonical" / f"{name}.json").read_text(encoding="utf-8"))
    assert all(vector in tested for vector in vectors(name))


def test_the_published_scripts_are_those_that_are_installed() -> None:
    page = text_of(IDENTITY)
    scripts = re.findall(_LABELLED.format(r"vector: console-script (\S+) (\S+)"), page, re.DOTALL)
    assert scripts
    for module, attribute, script in scripts:
        assert console_script(module, attribute).decode() == script
    (first_line,) = re.findall(_LABELLED.format("vector: script-first-line"), page, re.DOTALL)
    assert rewrite_script(b"#!python\nx = 1\n").decode() == first_line + "x = 1\n"


def commands_of(page: Path) -> list[tuple[str, str]]:
    """Verb and the rest of each command of envspec in a page: in its fenced blocks, and where inline code begins with one."""
    inline = "\n".join(code for code in _INLINE.findall(prose_of(page)) if code.startswith("envspec "))
    return _COMMAND.findall("\n".join([*blocks_of(page), inline]))


@pytest.mark.parametrize(
    "page", [ROOT / name for name in NAMES if not name.startswith(_AHEAD)], ids=lambda page: page.name
)
def test_every_command_that_a_page_shows_exists(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb, rest in commands_of(page):
        if not verb:
            continue
        if verb in GROUPS and rest.split()[:1] not in ([], ["--help"]):
            verb = f"{verb} {rest.split()[0]}"  # noqa: PLW2901 - of two words
        assert verb in VERBS or verb in GROUPS, f"there is no `envspec {verb}`"
        arguments = rest.partition(" -- ")[0]
        flags = set(re.findall(r"(?<!\S)--[a-z-]+", arguments)) - {"--help"}
        if flags:
            assert run([*verb.split(), "--help"]) == 0
            assert flags <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out)), f"{verb} {arguments}"


def test_the_readme_begins_with_the_two_commands() -> None:
    first = blocks_of(ROOT / "README.md")[0]
    commands = [line.partition("#")[0].partition(" -n ")[0].strip() for line in first.splitlines()]
    assert commands == ["uv run envspec build", "uv run pytest"]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_check_that_a_page_names_is_registered(page: Path) -> None:
    text = text_of(page)
    named = set(re.findall(r"\]\((?:\S*/)?checks/([a-z-]+)\.md", text)) | set(
        re.findall(r'^check = "([^"]*)"$', text, re.MULTILINE)
    )
    if page.parent.name == "adr" or page.parent == ROOT / "docs":
        named |= {match[1] for match in re.finditer(r"check[s]? +\[?`([a-z-]+)`", text)}
    assert named <= {check.id for check in registered_checks()}


def keys_of(table: dict[str, Any]) -> set[str]:
    """Every key of a TOML document, at any depth."""
    found = set(table)
    for value in table.values():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                found |= keys_of(inner)
    return found


def test_the_reference_of_the_lock_names_every_key() -> None:
    keys = keys_of(tomllib.loads((DATA / "lock" / "every-field.lock").read_text(encoding="utf-8")))
    page = text_of(ROOT / "docs" / "lock-format.md")
    named = set(re.findall(r"[a-z0-9_]+", " ".join(_INLINE.findall(page))))
    assert keys <= named, sorted(keys - named)


def test_the_page_of_the_store_names_every_folder(tmp_path: Path) -> None:
    Store(tmp_path).ensure()
    page = text_of(ROOT / "docs" / "store.md")
    table = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert {entry.name for entry in tmp_path.iterdir()} <= set(re.findall(r"[.\w]+", table))


def test_every_decision_is_in_the_index_and_has_its_form() -> None:
    index = text_of(RECORDS / "README.md")
    records = sorted(RECORDS.glob("[0-9]*.md"))
    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    for record in records:
        title = re.match(r"# (\d{4}) (.+)\n\n(Accepted|Superseded by \d{4}), ?", text_of(record))
        assert title is not None, record.name
        assert f"| [{title[1]}]({record.name}) | {title[2]} |" in index
        assert re.findall(r"^## (.+)$", text_of(record), re.MULTILINE) == [
            "Context",
            "Decision",
            "Rejected",
            "Consequences",
        ]


def test_every_fault_of_hosts_names_tests_that_exist() -> None:
    section = text_of(ROOT / "docs" / "hosts.md").partition("## What breaks")[2].partition("\n## ")[0]
    named = re.findall(r"`([a-z0-9_]{20,})`", section)
    there = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "hosts").glob("test_*.py"))
    assert len(named) > 30
    assert [name for name in named if f"def test_{name}(" not in there] == []


def test_the_glossary_is_sorted_and_has_each_word_once() -> None:
    words = re.findall(r"^\| ([a-z][a-z ]*) \|", text_of(ROOT / "docs" / "glossary.md"), re.MULTILINE)[1:]
    assert words == sorted(set(words))
