"""Reading TOML that people or strangers wrote: typed getters that gather every problem, each with its key path and line.

A `Document` is made by `read_document` and lives as long as one parse. Its tables are read through `Table`, whose getters never raise: they
note a `Problem` and give a placeholder of the right type, so that one pass finds everything. `Document.raise_problems` then raises once; a
value is built only after it. `Table.close` reports each key that no getter has asked for, with the nearest one that some getter has.

Key paths are written as `packages.torch`, `hosts."a b".gpus`, `package[12].sha256`. Lines come from `envspec.toml_lines`, which scans the
text only when there is a problem.

No message repeats a value that may hold a secret (`envspec.forms.quoted`).
"""

from __future__ import annotations

import re
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

import tomllib

from envspec.errors import EnvspecError, Problem
from envspec.forms import ANY_TEXT, Form, quoted

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    Path = tuple[str | int, ...]

MOST_DOTS = 1000
"""In one line. A dotted key costs tomllib memory with the square of its parts: 100,000 of them take 18 GB."""

_MARKER = r"(?m)^(?:<{7} .*|={7}|>{7} .*|\|{7} .*)\r?$"
_SYNTAX_PLACE = r" \(at (?:line (\d+), column (\d+)|end of document)\)$"
_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),  # before int, of which it is a subclass; likewise datetime before date
    (str, "a string"),
    (int, "an integer"),
    (float, "a float"),
    (list, "an array"),
    (dict, "a table"),
    (datetime, "a date-time"),
    (date, "a date"),
    (time, "a time"),
)


def kind_of(value: object) -> str:
    """What TOML calls a value: `a string`, `a table`."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), type(value).__name__)


def format_path(path: Path) -> str:
    """A key path as messages show it; a key that is not bare is quoted.

    Example:
        >>> format_path(("hosts", "a b", "gpus")), format_path(("package", 12, "sha256"))
        ('hosts."a b".gpus', 'package[12].sha256')
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        bare = re.fullmatch(r"[A-Za-z0-9_-]+", part)
        key = part if bare else '"' + quoted(part).strip("`") + '"'
        text += f".{key}" if text else key
    return text


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like this one; empty if none is."""
    from difflib import get_close_matches  # noqa: PLC0415 - only where something is wrong

    return next(iter(get_close_matches(word, sorted(known), n=1)), "")


class Document:
    """One TOML document that is being read, and every problem found in it so far."""

    __slots__ = ("_noted", "input_name", "kind", "root", "text")

    def __init__(self, text: str, values: dict[str, Any], *, input_name: str, kind: str) -> None:
        self.text = text
        self.input_name = input_name
        self.kind = kind
        self.root = Table(self, (), values)
        self._noted: list[tuple[Path, int, str, str]] = []

    def note(self, path: Path, message: str, hint: str = "") -> None:
        """Note a problem.

        Args:
            path: Keys and indices from the root.
            message: As in `Problem`.
            hint: As in `Problem`.
        """
        self._noted.append((path, 0, message, hint))

    def note_line(self, line: int, message: str) -> None:
        """Note a problem of a line that belongs to no key."""
        self._noted.append(((), line, message, ""))

    @property
    def is_sound(self) -> bool:
        """Whether no problem has been found so far."""
        return not self._noted

    def raise_problems(self, *, hint: str = "") -> None:
        """Raise all problems, in the order of their lines.

        Args:
            hint: What to do about all of them.

        Raises:
            EnvspecError: There are problems.
        """
        if not self._noted:
            return
        from envspec.toml_lines import line_of, locate  # noqa: PLC0415 - only where something is wrong

        lines = locate(self.text)
        placed = [(line or line_of(lines, path), path, message, advice) for path, line, message, advice in self._noted]
        placed.sort(key=lambda problem: problem[0])
        problems = tuple(
            Problem(message, where=f"{format_path(path)} (line {line})" if path else f"line {line}", hint=advice)
            for line, path, message, advice in placed
        )
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise EnvspecError(f"the {self.kind} has {count}", input_name=self.input_name, problems=problems, hint=hint)


class Table:
    """One table of a document. Getters note problems and go on with a placeholder."""

    __slots__ = ("_asked", "_document", "_is_placeholder", "_path", "_values")

    def __init__(self, document: Document, path: Path, values: dict[str, Any], *, is_placeholder: bool = False) -> None:
        self._document = document
        self._path = path
        self._values = values
        self._asked: set[str] = set()
        self._is_placeholder = is_placeholder

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def note(self, key: str | None, message: str, hint: str = "") -> None:
        """Note a problem of one key, or of the whole table if the key is None."""
        if not self._is_placeholder:  # what a missing table lacks follows from its being missing
            self._document.note(self._path if key is None else (*self._path, key), message, hint)

    def note_item(self, key: str, index: int, message: str, hint: str = "") -> None:
        """Note a problem of one item of an array."""
        self._document.note((*self._path, key, index), message, hint)

    def get(self, key: str) -> Any:  # noqa: ANN401 - any TOML value
        """The raw value, or None if the key is absent."""
        self._asked.add(key)
        return self._values.get(key)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Every key with its raw value, in the order of the text: for a table whose keys are names."""
        self._asked.update(self._values)
        return iter(self._values.items())

    def string(self, key: str, form: Form = ANY_TEXT, *, default: str | None = None) -> str:
        """A string of a form.

        Args:
            key: Of this table.
            form: What it must look like.
            default: What an absent key means; None if the key is required.
        """
        self._asked.add(key)
        value = self._values.get(key)
        if value is None:
            if default is None:
                self.note(key, f"is missing; expected {form.expected}", form.hint)
            return default or ""
        if not isinstance(value, str):
            self._wrong_kind((*self._path, key), form.expected, value)
            return ""
        mismatch = form.mismatch(value)
        if mismatch:
            self.note(key, mismatch, form.hint)
            return ""
        return value

    def integer(self, key: str, *, default: int | None = None) -> int:
        """An integer from 0 to 2**63 - 1; a default makes it optional."""
        self._asked.add(key)
        value = self._values.get(key)
        if value is None:
            if default is None:
                self.note(key, "is missing; expected an integer")
            return default or 0
        if isinstance(value, bool) or not isinstance(value, int):
            self.note(key, f"expected an integer, got {kind_of(value)}")
            return 0
        if not 0 <= value < 2**63:
            self.note(key, f"expected an integer from 0 to 2**63 - 1, got {quoted(_digits(value))}")
            return 0
        return value

    def boolean(self, key: str, *, default: bool) -> bool:
        """A boolean; an absent key means the default."""
        self._asked.add(key)
        value = self._values.get(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.note(key, f"expected `true` or `false`, got {kind_of(value)}")
        return default

    def strings(
        self, key: str, form: Form = ANY_TEXT, *, required: bool = False, unique: bool = True
    ) -> tuple[str, ...]:
        """An array of strings of a form, in its order. Only those that have the form are given.

        Args:
            key: Of this table.
            form: What each must look like.
            required: Whether the array must be there and not be empty.
            unique: Whether a string that is listed twice is a problem.
        """
        self._asked.add(key)
        value = self._values.get(key)
        if value is None:
            if required:
                self.note(key, f"is missing; expected an array, each item {form.expected}")
            return ()
        if not isinstance(value, list):
            self.note(key, f"expected an array, got {kind_of(value)}")
            return ()
        if required and not value:
            self.note(key, f"is empty; expected at least one item, {form.expected}")
        good: dict[int, str] = {}
        first: dict[str, int] = {}
        for index, item in enumerate(value):
            if not isinstance(item, str):
                self._wrong_kind((*self._path, key, index), form.expected, item)
            elif mismatch := form.mismatch(item):
                self.note_item(key, index, mismatch, form.hint)
            elif unique and item in first:
                self.note_item(key, index, f"{quoted(item)} is listed twice, first as item {first[item]}")
            else:
                first[item] = index
                good[index] = item
        return tuple(good.values())

    def table(self, key: str, *, required: bool = False) -> Table:
        """A table; if the key is absent, an empty one that takes no notes."""
        self._asked.add(key)
        value = self._values.get(key)
        if isinstance(value, dict):
            return Table(self._document, (*self._path, key), value)
        if value is not None:
            self.note(key, f"expected a table, got {kind_of(value)}")
        elif required:
            self.note(key, "is missing; expected a table")
        return Table(self._document, (*self._path, key), {}, is_placeholder=True)

    def tables(self, key: str) -> tuple[Table, ...]:
        """An array of tables; empty if the key is absent."""
        self._asked.add(key)
        value = self._values.get(key, [])
        if not isinstance(value, list):
            self.note(key, f"expected an array of tables (`[[{key}]]`), got {kind_of(value)}")
            return ()
        tables = []
        for index, item in enumerate(value):
            if isinstance(item, dict):
                tables.append(Table(self._document, (*self._path, key, index), item))
            else:
                self.note_item(key, index, f"expected a table, got {kind_of(item)}")
        return tuple(tables)

    def children(self) -> Iterator[tuple[str, Table]]:
        """Every key with its table, for a table whose keys are names of tables."""
        for key in self._values:
            value = self._values[key]
            if isinstance(value, dict):
                yield key, Table(self._document, (*self._path, key), value)
            else:
                self.note(key, f"expected a table, got {kind_of(value)}")

    def close(self, *, but: Container[str] = ()) -> None:
        """Report every key that no getter has asked for, except those that have been reported already."""
        for key in self._values:
            if key not in self._asked and key not in but:
                known = nearest(key, self._asked)
                hint = f"did you mean `{known}`?" if known else f"known keys: {', '.join(sorted(self._asked))}"
                self.note(key, "unknown key", hint)

    def _wrong_kind(self, path: Path, expected: str, value: object) -> None:
        scalar = isinstance(value, int | float) and not isinstance(value, bool)
        self._document.note(path, f"expected {expected}, got {kind_of(value)}", "put it in quotes" if scalar else "")


def _digits(value: int) -> str:
    """An integer in digits, unless Python would refuse to write so many."""
    return str(value) if -(10**30) < value < 10**30 else ("a negative number" if value < 0 else "a huge number")


def read_document(text: str, *, input_name: str, kind: str, conflict_hint: str) -> Document:
    """The document of a TOML text.

    Args:
        text: TOML; may be hostile.
        input_name: For errors.
        kind: What the document is, for errors: `spec`, `lock`.
        conflict_hint: What to do about merge-conflict markers.

    Raises:
        EnvspecError: The text is not TOML, or has merge-conflict markers.
    """
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        line = text.count("\n", 0, exc.start) + 1
        raise EnvspecError(f"the {kind} is not UTF-8 (line {line})", input_name=input_name) from None
    deep = next((number for number, line in enumerate(text.splitlines(), 1) if line.count(".") > MOST_DOTS), None)
    if deep is not None:
        raise EnvspecError(f"line {deep} of the {kind} has more than {MOST_DOTS} dots", input_name=input_name)
    try:
        return Document(text, tomllib.loads(text), input_name=input_name, kind=kind)
    except RecursionError:
        raise EnvspecError(f"the {kind} is nested too deeply", input_name=input_name) from None
    except ValueError as exc:  # TOMLDecodeError, and what Python says of a number of a million digits
        markers = [text.count("\n", 0, match.start()) + 1 for match in re.finditer(_MARKER, text)]
        if markers:
            raise EnvspecError(
                f"the {kind} has merge-conflict markers, the first on line {markers[0]}",
                input_name=input_name,
                hint=conflict_hint,
            ) from None
        raise _syntax_error(str(exc), text, kind=kind, input_name=input_name) from None


def _syntax_error(said: str, text: str, *, kind: str, input_name: str) -> EnvspecError:
    place = re.search(_SYNTAX_PLACE, said)
    message = said[: place.start()] if place else said.partition(";")[0]
    message = message[:1].lower() + message[1:]
    if place is None:
        return EnvspecError(f"the {kind} is not valid TOML: {message}", input_name=input_name)
    line, column = place.groups()
    if line is None:  # the end of the document
        rest = text.rstrip("\n")
        line, column = str(rest.count("\n") + 1), str(len(rest) - rest.rfind("\n"))
    return EnvspecError(
        f"the {kind} is not valid TOML at line {line}, column {column}: {message}", input_name=input_name
    )
