from __future__ import annotations

import pytest

from builder.uv_output import (
    Annotation,
    classify,
    is_plain_file_name,
    parse_annotations,
    parse_pylock,
    parse_undated,
    parse_yanked,
    shown,
)
from envspec.errors import EnvspecError

NO_WHEELS = """\
error: No solution found when resolving dependencies
  cause: Because sd==1.0 has no usable wheels and only sd==1.0 is available, we can conclude that all versions of sd cannot be used.
         And because all versions of mid depend on sd, we can conclude that all versions of mid cannot be used.
         And because all versions of usesd depend on mid and envspec-resolution depends on usesd, we can conclude that your requirements\
 are unsatisfiable.

hint: Wheels are required for `sd` because building from source is disabled for all packages (i.e., with `--no-build`)
"""

NO_WHEELS_WRAPPED = """\
  \u00d7 No solution found when resolving dependencies:
  ╰─▶ Because only sd==1.0 is available and sd==1.0 has no usable wheels, we
      can conclude that all versions of sd cannot be used.
      And because mid==1.0 depends on sd, we can conclude that mid==1.0 cannot
      be used.
      And because only mid==1.0 is available and usesd==1.0 depends on mid, we
      can conclude that usesd==1.0 cannot be used.
      And because only usesd==1.0 is available and envspec-resolution depends
      on usesd, we can conclude that your requirements are unsatisfiable.

      hint: Wheels are required for `sd` because building from source is
      disabled for all packages (i.e., with `--no-build`)
"""


@pytest.mark.parametrize("stderr", [NO_WHEELS, NO_WHEELS_WRAPPED])
def test_a_package_without_wheels_is_told_with_its_requesters(stderr: str) -> None:
    failure = classify(stderr)
    assert failure.kind == "sdist-only"
    assert failure.packages == ("sd",)
    assert failure.chain == ("usesd", "mid", "sd")


@pytest.mark.parametrize(
    ("stderr", "kind", "packages"),
    [
        (
            (
                "error: No solution found when resolving dependencies\n  cause: Because app was not found in the package registry and"
                " envspec-resolution depends on app, we can conclude that your requirements are unsatisfiable.\n"
            ),
            "unknown-package",
            ("app",),
        ),
        (
            (
                "error: No solution found when resolving dependencies\n  cause: Because app was not found in the package registry and"
                " envspec-resolution depends on app, we can conclude that your requirements are unsatisfiable.\n\nhint: An index URL"
                " (https://h.test/simple/) could not be queried due to a lack of valid authentication credentials (401 Unauthorized)\n"
            ),
            "authentication",
            ("app",),
        ),
        (
            (
                "error: No solution found\n  cause: Because lib was not found in the package registry and x depends on lib.\n\n"
                "hint: An index (https://h.test/simple/) returned a 403 Forbidden error. Check that the index URL is correct.\n"
            ),
            "authentication",
            ("lib",),
        ),
        (
            "error: Failed to fetch: https://h.test/simple/lib/\n  cause: HTTP status client error (401 Unauthorized) for url (x)\n",
            "authentication",
            (),
        ),
        (
            "error: Failed to fetch: https://h.test/simple/lib/\n  cause: Connection refused (os error 111)\n",
            "network",
            (),
        ),
        ("error: Failed to fetch: `https://h.test/lib/`\n  Caused by: dns error\n", "network", ()),
        ("error: Failed to unzip wheel: bad-1.0-py3-none-any.whl\n  cause: no end of central directory\n", "other", ()),
        ("", "other", ()),
    ],
)
def test_a_failure_is_told_from_the_others(stderr: str, kind: str, packages: tuple[str, ...]) -> None:
    failure = classify(stderr)
    assert failure.kind == kind
    assert failure.packages == packages


def test_an_explanation_speaks_of_the_spec_and_shows_no_url() -> None:
    failure = classify(
        "warning: `lib-1-py3-none-any.whl` is missing an upload date, but user provided: 2024-01-01T00:00:00Z\n"
        "error: No solution found when resolving dependencies\n"
        "  cause: Because there is no version of lib==2 and envspec-resolution depends on lib==2, we can conclude that your\n"
        "         requirements are unsatisfiable.\n\n"
        "hint: look at https://user:secret@h.test/x for hunter2\n\nhint: and there\n",
        secrets=frozenset({"hunter2"}),
    )
    assert failure.kind == "unsatisfiable"
    assert failure.sentence == (
        "Because there is no version of lib==2 and the spec depends on lib==2, we can conclude that your requirements are unsatisfiable."
    )
    assert failure.hints == ("look at <url> for <hidden>", "and there")
    assert failure.pins == ("lib",)
    assert failure.undated == {"lib"}
    assert "lib" in failure.mentioned


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (
            (
                "`app` was filtered by `exclude-newer` to only include packages uploaded before 2019-01-01T00:00:00Z. The latest version "
                "satisfying the requirement is v1.0.1, published at 2020-01-01T00:00:00Z. Consider using `exclude-newer-package` to override."
            ),
            "`app` 1.0.1 was published at 2020-01-01T00:00:00Z, after `snapshot`",
        ),
        (
            "`app` was filtered by `exclude-newer` to only include packages uploaded before 2019. Consider using `exclude-newer-package`.",
            "`snapshot` leaves out every version of `app` that would do",
        ),
        ("Wheels are available for `win` (v1.0)", "Wheels are available for `win` (v1.0)"),
    ],
)
def test_a_hint_of_uv_speaks_of_nothing_that_only_uv_has(hint: str, words: str) -> None:
    assert classify(f"error: x\n  cause: Because y.\n\nhint: {hint}\n").hints == (words,)


def test_notes_have_the_requesters_and_the_index() -> None:
    text = """\
app==1.0
    # via envspec-resolution (pyproject.toml)
    # from https://h.test/simple
lib==1.2+cu130
    # via
    #   envspec-resolution (pyproject.toml)
    #   other
    #   app
    # from https://other.test/simple
given @ https://h.test/given-1-py3-none-any.whl
    # via
    #   --override overrides.txt
    #   app
"""
    assert parse_annotations(text) == {
        "app": Annotation(required_by=(), index_url="https://h.test/simple"),
        "lib": Annotation(required_by=("app", "other"), index_url="https://other.test/simple"),
        "given": Annotation(required_by=("app",), index_url=""),
    }


def test_yanked_packages_come_with_their_reason() -> None:
    stderr = """\
Resolved 3 packages in 51ms
warning: `other==1.0` is yanked
warning: `pydantic-core==2.41.3` is yanked (reason: "corrupted "wheel" got \x1b[31muploaded")
"""
    assert parse_yanked(stderr) == {"other": "", "pydantic-core": 'corrupted "wheel" got [31muploaded'}


def test_undated_files_give_the_names_of_their_packages() -> None:
    stderr = "warning: `Some_Lib.x-1-py3-none-any.whl` is missing an\n upload date, but user provided: x\n"
    assert parse_undated(stderr) == {"some-lib-x"}


def test_a_pylock_gives_the_wheels_by_their_file_names() -> None:
    (package,) = parse_pylock(
        """
        lock-version = "1.0"
        [[packages]]
        name = "lib"
        version = "1.0+cu130"
        wheels = [
          { url = "https://h.test/lib-1.0%2Bcu130-py3-none-any.whl?token=x#y", size = 3, hashes = { sha256 = "aa" } },
          { url = "https://h.test/lib-1.0-py3-none-any.x%2F..%2Fy.whl", hashes = { sha256 = "aa" } },
          { url = "https://h.test/lib-1.0-1-py3-none-any.whl", size = -1, hashes = { md5 = "aa" } },
        ]
        """
    )
    assert (package.name, package.version) == ("lib", "1.0+cu130")
    assert [(wheel.file, wheel.sha256, wheel.size) for wheel in package.wheels] == [
        ("lib-1.0+cu130-py3-none-any.whl", "aa", 3),
        ("lib-1.0-1-py3-none-any.whl", "", None),
    ]
    assert "h.test" not in repr(package)


@pytest.mark.parametrize(
    "text", ["packages = 3", "[[packages]]\nname = 'x'", "x", "[[packages]]\nname='x'\nversion='1'\nwheels=[1]"]
)
def test_a_pylock_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(EnvspecError, match="not of the form that is expected"):
        parse_pylock(text)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("torch-2.11.0+cu130-cp312-cp312-manylinux_2_28_x86_64.whl", True),
        ("demo-1!1.0-py3-none-any.whl", True),
        ("", False),
        (".", False),
        ("..", False),
        (".hidden", False),
        ("-x.whl", False),
        ("a/b.whl", False),
        ("a\\b.whl", False),
        ("a\0.whl", False),
        ("a b.whl", False),
        ("a.whl\n", False),
        ("x" * 256, False),
    ],
)
def test_only_one_component_of_a_path_is_a_file_name(name: str, plain: bool) -> None:  # noqa: FBT001
    assert is_plain_file_name(name) is plain


def test_what_is_shown_is_one_line_that_ends() -> None:
    assert shown("a\n\x07b\u202e c  d") == "a b c d"
    assert len(shown("x" * 10_000)) < 3000
