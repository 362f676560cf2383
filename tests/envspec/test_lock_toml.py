from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

from envspec.errors import EnvspecError
from envspec.lock import (
    Lock,
    LockedFinding,
    LockedHook,
    LockedNeeds,
    LockedOverlay,
    LockedPackage,
    LockedPatch,
    PatchedFile,
    compute_env_id,
)
from envspec.lock_toml import HEADER, dump_lock, parse_lock
from envspec.spec import Waiver
from tests.support.strategies import locks, wheel_name

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "ddtree.lock"


def _digest(letter: str) -> str:
    return letter * 64


def _package(name: str, version: str, letter: str, **fields: object) -> LockedPackage:
    package = LockedPackage(
        name=name,
        version=version,
        index="default",
        file=wheel_name(name, version),
        size=1000,
        sha256=_digest(letter),
        tree=_digest("e"),
    )
    return replace(package, **fields)  # type: ignore[arg-type]


def _coherent(lock: Lock) -> Lock:
    return replace(lock, env=compute_env_id(lock))


def sample() -> Lock:
    """A lock that has every field."""
    return _coherent(
        Lock(
            spec_sha256=_digest("1"),
            env="",
            site=_digest("2"),
            name="ddtree",
            snapshot="2026-05-20T00:00:00Z",
            python="3.12",
            python_exact="3.12.3",
            platform="linux-x86_64",
            glibc="2.35",
            libraries=("libnuma.so.1",),
            cuda_toolkit="13.0",
            cuda_compute=("9.0", "12.0"),
            packages=(
                _package("filelock", "3.20.0", "3"),
                _package(
                    "setuptools",
                    "80.9.0",
                    "4",
                    hooks=(
                        LockedHook(
                            path="distutils-precedence.pth",
                            sha256=_digest("5"),
                            code=("import os; var = 'SETUPTOOLS'",),
                        ),
                    ),
                ),
                _package("sglang", "0.5.11", "6", requires=("filelock", "torch"), requires_python=">=3.10"),
                _package("torch", "2.11.0", "7", index="pytorch-cu130", requires=("filelock", "setuptools", "triton")),
                _package("triton", "3.6.0", "8"),
            ),
            overlays=(
                LockedOverlay(
                    package="sglang",
                    series="overlays/ddtree/series",
                    base_sha256=_digest("6"),
                    patches=(LockedPatch(name="0001-add-ddtree.patch", sha256=_digest("9")),),
                    files=(
                        PatchedFile(path="sglang/srt/new.py", before="", after=_digest("a")),
                        PatchedFile(path="sglang/srt/old.py", before=_digest("b"), after=""),
                        PatchedFile(path="sglang/srt/spec_info.py", before=_digest("b"), after=_digest("c")),
                    ),
                    version="0.5.11+ddtree.1a2b3c4d",
                    file="sglang-0.5.11+ddtree.1a2b3c4d-py3-none-any.whl",
                    size=1001,
                    sha256=_digest("d"),
                    tree=_digest("f"),
                ),
            ),
            overrides=("numpy==2.3.5",),
            waivers=(
                Waiver(
                    check="file-collision",
                    package="filelock",
                    path="build_backend.py",
                    owner="filelock",
                    reason='a "build script" that neither package imports',
                ),
            ),
            findings=(
                LockedFinding(
                    check="abs-runpath",
                    severity="warning",
                    subject="torch 2.11.0",
                    message="a RUNPATH leads to `/project`",
                    waived="",
                ),
            ),
        )
    )


GOOD = dump_lock(sample())


def _problems(text: str) -> dict[str, str]:
    """Place (without its line) -> message, of every problem of a text."""
    with pytest.raises(EnvspecError) as caught:
        parse_lock(text, input_name=NAME)
    assert caught.value.input_name == NAME
    return {problem.where.partition(" (line")[0]: problem.message for problem in caught.value.problems}


def _changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, f"{old!r} is in the text {GOOD.count(old)} times"
    return GOOD.replace(old, new)


def test_a_dumped_lock_is_the_golden_one(golden: Callable[[str, str], None]) -> None:
    golden("lock/every-field.lock", GOOD)


def test_a_lock_with_every_field_comes_back() -> None:
    assert parse_lock(GOOD, input_name=NAME) == sample()


def test_a_lock_with_no_optional_field_comes_back_without_them() -> None:
    lock = sample()
    lock = _coherent(
        replace(
            lock,
            snapshot="",
            python_exact="",
            libraries=(),
            cuda_toolkit="",
            cuda_compute=(),
            packages=(),
            overlays=(),
            overrides=(),
            waivers=(),
            findings=(),
        )
    )
    text = dump_lock(lock)
    assert parse_lock(text, input_name=NAME) == lock
    assert tomllib.loads(text).keys() == {"lock", "spec", "env", "site", "name", "python", "target"}


def test_the_format_comes_first_after_the_header() -> None:
    assert GOOD.startswith(HEADER + "lock = 1\n")
    assert GOOD.endswith("\n")


@given(locks())
def test_every_lock_comes_back_and_is_written_the_same(lock: Lock) -> None:
    text = dump_lock(lock)
    again = parse_lock(text, input_name=NAME)
    assert again == lock
    assert dump_lock(again) == text


@given(st.text(st.characters(exclude_categories=("Cs",))))  # type: ignore[arg-type]
def test_any_string_is_escaped_so_that_toml_gives_it_back(message: str) -> None:
    lock = replace(sample(), findings=(LockedFinding(check="c", severity="info", subject="s", message=message or "-"),))
    text = dump_lock(lock)
    assert tomllib.loads(text)["finding"][0]["message"] == (message or "-")


@pytest.mark.parametrize("hidden", ["\u202e", "\u2066", "\u200b", "\ufeff", "\U000e0041", "\x9b", "\x7f", "\u2028"])
def test_a_character_that_a_reviewer_would_not_see_is_written_as_an_escape(hidden: str) -> None:
    lock = replace(sample(), findings=(LockedFinding(check="c", severity="info", subject="s", message=f"a{hidden}b"),))
    text = dump_lock(lock)
    assert hidden not in text
    assert parse_lock(text, input_name=NAME) == lock


def test_a_lone_surrogate_is_refused_by_the_writer() -> None:
    lock = replace(sample(), findings=(LockedFinding(check="c", severity="info", subject="s", message="a\ud800b"),))
    with pytest.raises(EnvspecError, match=r"lone surrogate U\+D800"):
        dump_lock(lock)


def test_a_lone_surrogate_is_refused_by_the_reader() -> None:
    with pytest.raises(EnvspecError, match=r"the lock is not UTF-8 \(line 8\)"):
        parse_lock(GOOD.replace("numpy", "num\udcffpy"), input_name=NAME)


def test_an_array_is_on_one_line_if_it_fits_and_has_one_item_a_line_if_not() -> None:
    names = tuple(f"package-{number:02}" for number in range(20))
    packages = (*(_package(name, "1", "a") for name in names[:-1]), _package(names[-1], "1", "a", requires=names[:-1]))
    text = dump_lock(_coherent(replace(sample(), packages=packages, overlays=())))
    assert 'compute = ["9.0", "12.0"]\n' in text
    assert 'requires = [\n    "package-00",\n    "package-01",\n' in text
    assert '    "package-18",\n]\n' in text


SHORT = _digest("2")[:-1]
NOT_A_NAME = "expected a name of lower-case letters, digits, `.`, `_` and `-` that begins with a letter or digit, got"
NOT_A_PATH = "expected a relative path with `/`, without `.` and `..`, got"
NOT_A_WHEEL = "expected the name of a wheel file, got"
NOT_A_TIME = "expected a time in UTC such as `2026-05-20T00:00:00Z`, got"
OTHER_BASE = f"the overlay is on a wheel with sha256 `{_digest('0')}`, locked is `{_digest('6')}`"
TORCH_FILE = 'file = "torch-2.11.0-py3-none-any.whl"'
SERIES = 'series = "overlays/ddtree/series"'
CASES = [
    # what is changed, into what, where the problem is, what it says
    ("lock = 1\n", "", "lock", "is missing: a lock begins with `lock = 1`"),
    ("lock = 1\n", "lock = '1'\n", "lock", "expected the integer 1, got a string"),
    (f'site = "{_digest("2")}"', f'site = "{SHORT}"', "site", "expected 64 hex digits, got 63"),
    (f'site = "{_digest("2")}"', f'site = "{SHORT}G"', "site", f"expected 64 hex digits, got `{SHORT}G`"),
    (f'site = "{_digest("2")}"\n', "", "site", "is missing; expected 64 hex digits"),
    (f'sha256 = "{_digest("3")}"', f'sha256 = "{_digest("3")[1:]}"', "package[0].sha256", "expected 64 hex digits, got 63"),
    ('name = "ddtree"', "name = 3", "name", f"{NOT_A_NAME} an integer"),
    ('snapshot = "2026-05-20T00:00:00Z"', 'snapshot = "2026-02-30T00:00:00Z"', "snapshot", "there is no such time: `2026-02-30T00:00:00Z`"),
    ('snapshot = "2026-05-20T00:00:00Z"', "snapshot = 2026-05-20T00:00:00Z", "snapshot", f"{NOT_A_TIME} a date-time"),
    ('exact = "3.12.3"', 'exact = "3.11.3"', "python.exact", "`3.11.3` is not a Python 3.12"),
    ('glibc = "2.35"', 'glibc = "2.35"\nmusl = "1"', "target.musl", "unknown key"),
    (
        'compute = ["9.0", "12.0"]',
        "compute = []",
        "cuda.compute",
        "is empty; expected at least one item, a compute capability such as `9.0`",
    ),
    ('compute = ["9.0", "12.0"]', 'compute = ["9.0", 12.0]', "cuda.compute[1]", "expected a compute capability such as `9.0`, got a float"),
    ("size = 1001", "size = -1", "overlay[0].size", "expected an integer from 0 to 2**63 - 1, got `-1`"),
    ("size = 1001", f"size = {'9' * 40}", "overlay[0].size", "expected an integer from 0 to 2**63 - 1, got `a huge number`"),
    ("size = 1001", "size = true", "overlay[0].size", "expected an integer, got a boolean"),
    ('index = "pytorch-cu130"', 'index = "https://user:secret@host/simple"', "package[3].index", f"{NOT_A_NAME} a URL"),
    ('name = "torch"', 'name = "Torch"', "package[3].name", "expected the normalised name of a package, got `Torch`"),
    ('name = "torch"', 'name = "sglang"', "package[3].name", "`sglang` is listed twice"),
    ('name = "torch"', 'name = "zlib"', "package[4].name", "`triton` comes after `zlib`, but they are sorted"),
    (TORCH_FILE, 'file = "a/torch-2.11.0-py3-none-any.whl"', "package[3].file", f"{NOT_A_WHEEL} `a/torch-2.11.0-py3-none-any.whl`"),
    (TORCH_FILE, 'file = "torch-2.11.0-py3-none-any.zip"', "package[3].file", f"{NOT_A_WHEEL} `torch-2.11.0-py3-none-any.zip`"),
    (
        TORCH_FILE,
        'file = "torch-2.11.0-any.whl"',
        "package[3].file",
        "`torch-2.11.0-any.whl` is not the name of a wheel file: it has 3 parts, not 5 or 6",
    ),
    (
        TORCH_FILE,
        'file = "torch-2.10.0-py3-none-any.whl"',
        "package[3].file",
        "`torch-2.10.0-py3-none-any.whl` has version `2.10.0`, not `2.11.0`",
    ),
    (
        TORCH_FILE,
        'file = "troch-2.11.0-py3-none-any.whl"',
        "package[3].file",
        "`troch-2.11.0-py3-none-any.whl` is a wheel of `troch`, not of `torch` (`name`)",
    ),
    ('requires = ["filelock", "torch"]', 'requires = ["torch", "filelock"]', "package[2].requires", "is not sorted"),
    (
        'requires = ["filelock", "torch"]',
        'requires = ["torch", "torch"]',
        "package[2].requires[1]",
        "`torch` is listed twice, first as item 0",
    ),
    ('requires = ["filelock", "torch"]', 'requires = ["flask", "torch"]', "package[2].requires", "not locked: `flask`"),
    ('path = "distutils-precedence.pth"', 'path = "../a.pth"', "package[1].hook[0].path", f"{NOT_A_PATH} `../a.pth`"),
    ('package = "sglang"', 'package = "sgl"', "overlay[0].package", "`sgl` is not a locked package"),
    (f'base_sha256 = "{_digest("6")}"', f'base_sha256 = "{_digest("0")}"', "overlay[0].base_sha256", OTHER_BASE),
    (SERIES, 'series = "/etc/passwd"', "overlay[0].series", f"{NOT_A_PATH} `/etc/passwd`"),
    (SERIES, 'series = "a/../../b"', "overlay[0].series", f"{NOT_A_PATH} `a/../../b`"),
    (
        'name = "0001-add-ddtree.patch"',
        'name = "../0001.patch"',
        "overlay[0].patch[0].name",
        "expected the name of a patch beside its series, got `../0001.patch`",
    ),
    (f'after = "{_digest("a")}"\n', "", "overlay[0].change[0]", "has neither `before` nor `after`"),
    (
        'path = "sglang/srt/new.py"',
        'path = "sglang/srt/spec_info.py"',
        "overlay[0].change[1].path",
        "`sglang/srt/old.py` comes after `sglang/srt/spec_info.py`, but they are sorted",
    ),
    ('owner = "filelock"', 'owner = "filelock"\nwhy = "x"', "waiver[0].why", "unknown key"),
    ('path = "build_backend.py"\n', "", "waiver[0].owner", "says whose file stays, but `path` does not say which file"),
    ('severity = "warning"', 'severity = "fatal"', "finding[0].severity", "expected `error`, `warning` or `info`, got `fatal`"),
    (
        'overrides = ["numpy==2.3.5"]',
        'overrides = ["numpy @ https://host/numpy.whl"]',
        "overrides[0]",
        "expected a requirement such as `numpy==2.3.5`, got a URL",
    ),
    ("[python]\n", "[Python]\n", "python", "is missing; expected a table"),
    ("[cuda]\n", "[[cuda]]\n", "cuda", "expected a table, got an array"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "where", "message"), CASES)
def test_a_wrong_field_is_reported_with_its_place(old: str, new: str, where: str, message: str) -> None:
    assert _problems(_changed(old, new)).get(where) == message


def test_a_problem_tells_its_line_and_the_error_what_to_do() -> None:
    text = _changed(f'sha256 = "{_digest("7")}"', f'sha256 = "{_digest("7")[1:]}"')
    line = text[: text.index(_digest("7")[1:])].count("\n") + 1
    with pytest.raises(EnvspecError) as caught:
        parse_lock(text, input_name=NAME)
    assert caught.value.message == "the lock has 1 problem"
    assert caught.value.hint == "run `envspec lock`, which writes it anew"
    assert [problem.where for problem in caught.value.problems] == [f"package[3].sha256 (line {line})"]


def test_all_problems_are_reported_at_once_in_the_order_of_their_lines() -> None:
    text = (
        _changed('severity = "warning"', 'severity = "fatal"')
        .replace('glibc = "2.35"', 'glibc = "35"')
        .replace("size = 1001", "size = 'big'")
    )
    assert list(_problems(text)) == ["target.glibc", "overlay[0].size", "finding[0].severity"]


def test_another_format_is_named_with_the_one_that_is_supported() -> None:
    with pytest.raises(EnvspecError, match="the lock has format 2, this envspec supports 1") as caught:
        parse_lock(_changed("lock = 1\n", "lock = 2\nnew = true\n"), input_name=NAME)
    assert "use the envspec that wrote it" in caught.value.hint


def test_an_env_id_that_is_not_that_of_the_content_is_refused() -> None:
    other = _changed(f'sha256 = "{_digest("8")}"', f'sha256 = "{_digest("9")}"')
    lock = sample()
    moved = _coherent(replace(lock, packages=(*lock.packages[:-1], replace(lock.packages[-1], sha256=_digest("9")))))
    assert _problems(other) == {"env": f"the env id in the lock is `{lock.env}`, its content gives `{moved.env}`"}


def test_merge_conflict_markers_are_recognised() -> None:
    conflict = '<<<<<<< HEAD\nglibc = "2.35"\n=======\nglibc = "2.39"\n>>>>>>> bump\n'
    with pytest.raises(EnvspecError) as caught:
        parse_lock(_changed('glibc = "2.35"\n', conflict), input_name=NAME)
    assert caught.value.message == "the lock has merge-conflict markers, the first on line 16"
    assert caught.value.hint == "run `envspec lock`: a lock is not merged by hand"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('glibc = "2.35"', "glibc = '2.35'", "expected `glibc = \"2.35\"`, got `glibc = '2.35'`"),
        ("[target]\n", "# safe, said the reviewer\n[target]\n", "expected `[target]`, got `# safe, said the reviewer`"),
        (HEADER, "", "expected `# Written by `envspec lock`; reviewed by people, edited by nobody.`, got `lock = 1`"),
        ("\n[python]", "\r\n[python]", "expected an empty string, got `\\r`"),
        ('waived = ""\n', "", ""),
    ],
)
def test_a_text_that_says_the_same_in_other_bytes_is_refused(old: str, new: str, message: str) -> None:
    if not message:
        assert old not in GOOD  # what is empty is not written
        return
    assert list(_problems(_changed(old, new)).values()) == [message]


def test_a_truncated_lock_is_refused_wherever_it_is_cut() -> None:
    for end in range(0, len(GOOD), 7):
        with pytest.raises(EnvspecError):
            parse_lock(GOOD[:end], input_name=NAME)


@pytest.mark.parametrize(
    ("file_version", "version"),
    [
        ("1.0", "1.0.0"),
        ("2020.1.1", "2020.01.01"),
        ("1.0_1", "1.0-1"),
        ("1.0+cu130", "1.0"),
        ("1.0a1", "1.0.alpha1"),
        ("1.0+local_2", "1.0+local.2"),
    ],
)
def test_versions_that_are_equal_agree_whatever_their_spelling(file_version: str, version: str) -> None:
    lock = _coherent(
        replace(
            sample(), overlays=(), packages=(_package("a", version, "a", file=f"a-{file_version}-py3-none-any.whl"),)
        )
    )
    assert parse_lock(dump_lock(lock), input_name=NAME) == lock


@pytest.mark.parametrize(
    ("file_version", "version"), [("1.0", "1.0+cu130"), ("1.0+cu128", "1.0+cu130"), ("1", "x"), ("1.0.post1", "1.0")]
)
def test_versions_that_differ_do_not_agree(file_version: str, version: str) -> None:
    lock = _coherent(
        replace(
            sample(), overlays=(), packages=(_package("a", version, "a", file=f"a-{file_version}-py3-none-any.whl"),)
        )
    )
    assert list(_problems(dump_lock(lock))) == ["package[0].file"]


def _parse_or_refuse(text: str) -> None:
    """The promise to everybody who reads a hostile lock: a value that means exactly this text, or an `EnvspecError`."""
    try:
        lock = parse_lock(text, input_name=NAME)
    except EnvspecError as error:
        assert str(error)  # noqa: PT017 - that it can be shown is part of the promise
    else:
        assert dump_lock(lock) == text


@given(st.data())
def test_a_lock_with_changed_bytes_is_that_lock_or_refused(data: st.DataObject) -> None:
    raw = bytearray(GOOD.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(raw)))
        end = data.draw(st.integers(start, min(len(raw), start + data.draw(st.sampled_from([1, 3, 100])))))
        raw[start:end] = data.draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from([b"\n", b'"', b"[", b"]]", b"{", b"= 1\n", b"\\u0000", b"#", b"0"]),
            )
        )
    _parse_or_refuse(raw.decode(errors=data.draw(st.sampled_from(["replace", "surrogateescape"]))))


@given(st.data())
def test_a_lock_with_moved_lines_is_that_lock_or_refused(data: st.DataObject) -> None:
    lines = GOOD.splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 4))):
        taken = lines.pop(data.draw(st.integers(0, len(lines) - 1)))
        for _ in range(data.draw(st.integers(0, 2))):
            lines.insert(data.draw(st.integers(0, len(lines))), taken)
    _parse_or_refuse("".join(lines))


_scalars = st.one_of(
    st.text(max_size=5).map(
        lambda text: '"' + "".join(f"\\U{ord(c):08X}" for c in text if not 0xD800 <= ord(c) < 0xE000) + '"'
    ),
    st.sampled_from(
        [
            "1",
            "-1",
            "true",
            "1.5",
            "nan",
            "2026-05-20",
            "2026-05-20T00:00:00Z",
            "07:00:00",
            "9" * 5000,
            '"3.12"',
            f'"{_digest("a")}"',
        ]
    ),
)
_keys = st.sampled_from(
    [
        "name",
        "version",
        "package",
        "overlay",
        "file",
        "requires",
        "hook",
        "path",
        '"a b"',
        '"https://u:p@h"',
        '"\\u0000"',
    ]
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(_keys, inner, max_size=3).map(
            lambda table: "{" + ", ".join(f"{key} = {value}" for key, value in table.items()) + "}"
        ),
    ),
    max_leaves=8,
)
_top = (
    "lock",
    "spec",
    "env",
    "site",
    "name",
    "snapshot",
    "overrides",
    "python",
    "target",
    "cuda",
    "package",
    "overlay",
    "waiver",
    "finding",
    "x",
)


@given(st.dictionaries(st.sampled_from(_top), _values))
def test_any_toml_is_a_lock_or_refused(values: dict[str, str]) -> None:
    _parse_or_refuse("lock = 1\n" + "".join(f"{key} = {value}\n" for key, value in values.items() if key != "lock"))


@pytest.mark.parametrize(
    "text",
    ["", "\x00", "a = " + "[" * 100_000, "a = " + "{b=" * 5_000, "a = " + "9" * 5_000, "[" * 50_000, "lock = 1\n" * 2],
)
def test_texts_that_break_parsers_are_refused(text: str) -> None:
    with pytest.raises(EnvspecError):
        parse_lock(text, input_name=NAME)


def test_no_message_repeats_a_secret() -> None:
    for old in (
        'index = "pytorch-cu130"',
        'name = "ddtree"',
        'path = "build_backend.py"',
        'glibc = "2.35"',
        'series = "overlays/ddtree/series"',
    ):
        key = old.partition(" = ")[0]
        with pytest.raises(EnvspecError) as caught:
            parse_lock(_changed(old, f'{key} = "https://user:hunter2@host/simple"'), input_name=NAME)
        assert "hunter2" not in str(caught.value)


def test_glibc_of_binaries_may_be_the_version_of_its_oldest_symbols() -> None:
    lock = replace(sample(), needs=LockedNeeds(glibc="2.2.5"))
    assert parse_lock(dump_lock(lock), input_name="ddtree.lock") == lock
