"""Why there is no resolution, in words that tell what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.uv_compile import DEFAULT_INDEX
from envspec.errors import FOUND_WRONG, EnvspecError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from builder.uv_compile import Asker
    from builder.uv_output import Failure

WHERE_CREDENTIALS_GO = (
    "put them into the URL of the index in `UV_DEFAULT_INDEX` or uv.toml, into `UV_INDEX_<NAME>_USERNAME` and"
    " `UV_INDEX_<NAME>_PASSWORD`, or into netrc"
)


def failure_error(
    failure: Failure, *, asker: Asker, refusing: str = DEFAULT_INDEX, newest: Sequence[str] = ()
) -> EnvspecError:
    """The error for a failure of uv.

    Args:
        failure: What uv said.
        asker: Who asked.
        refusing: Name of the index that refuses credentials, where it does.
        newest: Other versions of pinned packages with any one of which the spec resolves: `nixl` 1.5.1.
    """
    named = ", ".join(f"`{name}`" for name in failure.packages)
    match failure.kind:
        case "authentication":
            return EnvspecError(
                f"the index `{refusing}` refuses the credentials, or needs some",
                hint=f"credentials: {WHERE_CREDENTIALS_GO}",
            )
        case "network":
            return EnvspecError(
                f"an index cannot be reached: {failure.sentence or 'uv does not say why'}",
                hint="look at the network, the proxy, and where `UV_DEFAULT_INDEX` and uv.toml point",
            )
        case "offline":
            return EnvspecError(
                "uv may not use the network, and its cache lacks what the spec needs",
                detail=failure.sentence,
                hint="unset `UV_OFFLINE`",
            )
        case "unknown-package":
            indexes = [asker.index_of(name) for name in failure.packages]
            places = sorted({index.name if index else DEFAULT_INDEX for index in indexes})
            return EnvspecError(
                f"{named} is not on the index {' or '.join(f'`{place}`' for place in places)} [unknown-package]",
                detail=failure.sentence,
                hint="; ".join(
                    [*_advice(newest), "look at the spelling; a package of another index needs that index in [indexes]"]
                ),
                exit_code=FOUND_WRONG,
            )
        case "sdist-only":
            return EnvspecError(
                f"{named} has no wheel, only source archives [sdist-only]",
                detail=f"asked for by: {' -> '.join(('the spec', *failure.chain))}\n{failure.sentence}",
                hint=f"offer a wheel of {named} on an index and name that in [indexes], or take another version in [overrides]",
                exit_code=FOUND_WRONG,
            )
        case "unsatisfiable":
            if failure.undated & failure.mentioned:
                return undated_error(failure.undated & failure.mentioned)
            return EnvspecError(
                f"no set of packages satisfies the spec on Python {asker.python}, {asker.platform}, glibc {asker.glibc}"
                " [unsatisfiable]",
                detail=failure.sentence,
                hint="; ".join([*_advice(newest), *failure.hints]),
                exit_code=FOUND_WRONG,
            )
        case "other":
            return EnvspecError("uv could not answer", detail=failure.sentence)


def _advice(newest: Sequence[str]) -> list[str]:
    if not newest:
        return []
    each = "it is" if len(newest) == 1 else "each is"
    return [f"with {' or '.join(newest)} the spec resolves: {each} the newest version that does"]


def undated_error(packages: Iterable[str]) -> EnvspecError:
    """The error for packages that the snapshot leaves out only because nobody knows how old they are."""
    named = ", ".join(f"`{name}`" for name in sorted(packages))
    return EnvspecError(
        f"the index of {named} does not say when files were uploaded, so `snapshot` leaves them all out [no-upload-time]",
        hint="use an index or mirror that says so; or name its index for them in [indexes] and pin them with `==` in [packages]; or"
        " take `snapshot` out of the spec",
        exit_code=FOUND_WRONG,
    )


def stranger_error(packages: Iterable[tuple[str, str]]) -> EnvspecError:
    """The error for packages (name and version) from an index that is neither the default one nor named for them."""
    problems = tuple(Problem(message=f"`{name}` {version}") for name, version in sorted(packages))
    subject = "a package comes" if len(problems) == 1 else f"{len(problems)} packages come"
    return EnvspecError(
        f"{subject} from an index that the spec does not name for it [index-not-allowed]",
        problems=problems,
        hint="name that index for them in [indexes], or take it out of `UV_INDEX`, `UV_EXTRA_INDEX_URL`, `UV_FIND_LINKS` and uv.toml",
        exit_code=FOUND_WRONG,
    )
