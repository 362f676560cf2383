"""RECORD, the list that a wheel gives of its own files, against the files."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from envspec.checks.anomalies import Wording, findings_of_kind, findings_of_wheel
from envspec.checks.registry import check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.checks.closure import Closure, ClosureWheel
    from envspec.facts import Finding

_CODE = re.compile(r".*\.(py|pth|pyc|pyo|so(\.\d+)*)", re.IGNORECASE | re.DOTALL)


@check("record-hash")
def record_hash(closure: Closure) -> Iterable[Finding]:
    """Every file has the sha256 and the size that RECORD states.

    Severity: error.

    Why: neither uv nor pip compares them. A file that differs was changed after the wheel was built, by hand or by somebody
    else.

    Example:
        error: wrong 1.0 has 1 file that differs from its RECORD: `wrong/__init__.py`

    How to mend: use a wheel as its project published it, and make changes with an overlay, which writes RECORD anew.
    """
    wording = Wording(
        check="record-hash",
        severity="error",
        one="file that differs from its RECORD",
        many="files that differ from their RECORD",
        hint="use the wheel as its project published it; an overlay is the place for changes",
    )
    return findings_of_kind(closure, "record-hash", wording)


@check("record-ghost")
def record_ghost(closure: Closure) -> Iterable[Finding]:
    """RECORD names only files that the wheel has.

    Severity: warning.

    Why: the tree is complete without them, but something was lost when the wheel was built, or taken out of it later.

    Example:
        warning: ghostly 1.0 has 1 row of RECORD without a file: `ghostly/lost.py`

    How to mend: look whether the package needs the file; the installed RECORD is written anew without the row.
    """
    wording = Wording(
        check="record-ghost",
        severity="warning",
        one="row of RECORD without a file",
        many="rows of RECORD without a file",
        hint="look whether the package needs what is missing",
    )
    return findings_of_kind(closure, "record-ghost", wording)


@check("record-path")
def record_path(closure: Closure) -> Iterable[Finding]:
    """RECORD writes paths as the wheel format asks: relative, in their shortest form.

    Severity: warning.

    Why: in selenium 4.1.0 all 298 rows begin with `/`. Taken literally, every file of it is missing and unrecorded.

    Example:
        warning: selenium 4.1.0 has 298 rows of RECORD with an odd path: `/selenium/__init__.py` and 297 more

    How to mend: nothing; the paths are read as they are meant, and the installed RECORD is written anew.
    """
    wording = Wording(
        check="record-path",
        severity="warning",
        one="row of RECORD with an odd path",
        many="rows of RECORD with an odd path",
        hint="nothing is to be done: the installed RECORD is written anew",
    )
    return findings_of_kind(closure, "record-path", wording)


@check("unrecorded-file")
def unrecorded_file(closure: Closure) -> Iterable[Finding]:
    """RECORD lists every file of the wheel.

    Severity: error for files that may run (`.py`, `.pth`, `.pyc`, `.so`, executables, scripts), warning for others.

    Why: uv and pip install what is in the archive, whether RECORD lists it or not. A file without a row is a way to add code
    to a wheel whose RECORD was looked at.

    Example:
        error: sly 1.0 has 1 file with code that RECORD does not list: `zz.pth`

    How to mend: do not use the wheel before it is known how the file came into it.
    """
    for wheel in closure.wheels:
        unrecorded = [anomaly for anomaly in wheel.facts.anomalies if anomaly.kind == "unrecorded"]
        if not unrecorded:
            continue
        executable = {file.path for file in wheel.facts.files if file.executable}
        details: dict[bool, dict[str, str]] = defaultdict(dict)
        for anomaly in unrecorded:
            details[_may_run(anomaly.path, wheel, executable)][anomaly.path] = anomaly.detail
        for is_code, found in sorted(details.items(), reverse=True):
            code = " with code" if is_code else ""
            wording = Wording(
                check="unrecorded-file",
                severity="error" if is_code else "warning",
                one=f"file{code} that RECORD does not list",
                many=f"files{code} that RECORD does not list",
                hint="do not use the wheel before it is known how the file came into it" if is_code else "",
            )
            yield from findings_of_wheel(closure, wheel, found, wording)


def _may_run(member: str, wheel: ClosureWheel, executable: set[str]) -> bool:
    """Whether a member may be code: by its suffix, as a script, or by its executable bit."""
    folder, _, below = member.partition("/")
    scheme, _, rest = below.partition("/")
    in_data = folder.endswith(".data")
    if _CODE.fullmatch(member) or (in_data and scheme == "scripts"):
        return True
    if in_data:
        return rest in executable or wheel.site_packages + rest in executable
    return wheel.site_packages + member in executable
