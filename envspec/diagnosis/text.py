"""A diagnosis for a person: the first cause with its evidence, what follows from it and the fix; then the rest, shorter and shorter."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from envspec.diagnosis.telling import shown_raise
from envspec.wording import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from envspec.diagnosis.values import Cause, Diagnosis, Fix, NotCause
    from envspec.traced import Traced

WIDTH = 118
SHOWN_EVIDENCE = 6
SHOWN_LESS_EVIDENCE = 2
SHOWN_FOLLOWS = 6
SHOWN_NOT_CAUSES = 6
SHOWN_REMARKS = 8
SHOWN_WARNINGS = 6

_WORDS = {"failure": "the run failed by it", "possible failure": "it can fail by this", "nothing yet": ""}


def render(diagnosis: Diagnosis, paint: Callable[[str, str], str] = lambda word, _role: word) -> list[str]:
    """The lines.

    Args:
        diagnosis: What to show.
        paint: Colours a word for its role: `error`, `warning`, `good`, `head`.
    """
    lines: list[str] = []
    if diagnosis.traced is not None:
        lines += _run(diagnosis.traced, paint)
    errors = [cause for cause in diagnosis.causes if cause.severity == "error"]
    others = [cause for cause in diagnosis.causes if cause.severity != "error"]
    if not errors:
        state = "nothing found that keeps it from working"
        lines.append(paint(state, "good") if diagnosis.healthy else f"{state}, and yet the run failed")
    for number, cause in enumerate(errors, 1):
        lines += _cause(number, cause, paint, full=number == 1 or cause.explains == "failure")
    lines += _warnings(others, len(errors), paint)
    failed = diagnosis.traced is not None and diagnosis.traced.failed
    lines += _not_causes(diagnosis.not_causes, paint, suspected=failed)
    if diagnosis.remarks:
        lines += ["", paint("noticed, and not the cause" if errors else "noticed", "head")]
        lines += [line for remark in diagnosis.remarks[:SHOWN_REMARKS] for line in _wrapped(remark, "  ", "    ")]
        lines += _more(len(diagnosis.remarks) - SHOWN_REMARKS, "  ")
    if diagnosis.notes:
        lines += ["", paint("not looked at", "head")]
        lines += [line for note in diagnosis.notes[:SHOWN_REMARKS] for line in _wrapped(note, "  ", "    ")]
        lines += _more(len(diagnosis.notes) - SHOWN_REMARKS, "  ")
    return lines


def _run(traced: Traced, paint: Callable[[str, str], str]) -> Iterator[str]:
    if not traced.failed:
        yield f"run      {printable(traced.target)}: {paint('it ended well', 'good')} after {traced.seconds:.1f} s"
    elif traced.chain:
        yield from _wrapped(f"run      {printable(traced.target)}: {shown_raise(traced.chain[-1])}", "", "         ")
    else:
        said = printable(f"{traced.ending}{f' ({traced.detail})' if traced.detail else ''}")
        yield from _wrapped(f"run      {printable(traced.target)}: {said}", "", "         ")
    yield ""


def _cause(number: int, cause: Cause, paint: Callable[[str, str], str], *, full: bool) -> Iterator[str]:
    if number > 1:
        yield ""
    head = f"{paint(f'cause {number}', 'error')}  "
    first, *rest = _wrapped(f"{cause.message} [{cause.check}]", "", "         ", width=WIDTH - 9)
    yield f"{head}{first}"
    yield from rest
    shown = SHOWN_EVIDENCE if full else SHOWN_LESS_EVIDENCE
    said = cause.message
    evidence = [line for line in cause.evidence if line != said]
    for line in evidence[:shown]:
        yield from _wrapped(line, "  . ", "    ")
    yield from _more(len(evidence) - shown, "    ")
    follows = cause.follows
    if follows:
        yield f"  {paint('so that', 'head')}"
        for line in follows[: SHOWN_FOLLOWS if full else SHOWN_LESS_EVIDENCE]:
            yield from _wrapped(line, "  > ", "    ")
        yield from _more(len(follows) - (SHOWN_FOLLOWS if full else SHOWN_LESS_EVIDENCE), "    ")
    yield from _fix(cause.fix, paint)


def _fix(fix: Fix | None, paint: Callable[[str, str], str]) -> Iterator[str]:
    if fix is None:
        return
    first, *rest = _wrapped(fix.text, "", "       ", width=WIDTH - 7)
    yield f"  {paint('fix', 'good')}  {first}"
    yield from rest
    if fix.command:
        yield f"       $ {fix.command}"  # never broken: it is copied
    if fix.proven_by:
        yield from _wrapped(f"({fix.proven_by})", "       ", "       ")


def _warnings(causes: Sequence[Cause], errors: int, paint: Callable[[str, str], str]) -> Iterator[str]:
    if not causes:
        return
    yield ""
    for cause in causes[:SHOWN_WARNINGS]:
        first, *rest = _wrapped(f"{cause.message} [{cause.check}]", "", "         ", width=WIDTH - 9)
        yield f"{paint('warning', 'warning')}  {first}"
        yield from rest
        if not errors:
            for line in [line for line in cause.evidence if line != cause.message][:SHOWN_LESS_EVIDENCE]:
                yield from _wrapped(line, "  . ", "    ")
            yield from _fix(cause.fix, paint)
    yield from _more(len(causes) - SHOWN_WARNINGS, "  ")


def _not_causes(not_causes: Sequence[NotCause], paint: Callable[[str, str], str], *, suspected: bool) -> Iterator[str]:
    if not not_causes:
        return
    yield ""
    yield paint("not the cause", "head")
    if not suspected:
        yield f"  {counted(len(not_causes), 'package')} whose files and requirements are all there"
        return
    for each in not_causes[:SHOWN_NOT_CAUSES]:
        yield from _wrapped(each.reason, "  ", "    ")
    rest = not_causes[SHOWN_NOT_CAUSES:]
    if rest:
        yield from _wrapped(f"nor {', '.join(printable(each.package) for each in rest)}", "  ", "    ")


def _more(count: int, indent: str) -> list[str]:
    return [f"{indent}and {count} more, which `--json` has"] if count > 0 else []


def _wrapped(text: str, first: str, rest: str, width: int = WIDTH) -> list[str]:
    """A text in lines; what has no space in it is not broken."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
