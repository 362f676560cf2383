"""Which version of a package goes with others: the index of `envspec.diagnosis.offers`, asked through uv.

Nobody waits for it where there is no answer: without uv or network it offers nothing, and says so once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.uv import find_uv
from builder.uv_compile import PYLOCK_OPTIONS, make_asker
from builder.uv_output import parse_pylock
from envspec.diagnosis.offers import Offer
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from builder.uv_compile import Asker

TIMEOUT_S = 60.0
NEWEST_GLIBC_OF_UV = "2.40"


class UvIndex:
    """Asks uv; the same question once."""

    def __init__(
        self,
        *,
        python: str,
        platform: str,
        glibc: str,
        environ: Mapping[str, str],
        cache_dir: Path,
        note: Callable[[str], None],
    ) -> None:
        """Begin.

        Args:
            python: Of the venv: `3.12.3`, or `3.12`.
            platform: `linux-x86_64` or `linux-aarch64`.
            glibc: Of the machine; one that uv does not know is taken for its newest.
            environ: Says, with uv.toml, where the indexes are.
            cache_dir: uv's cache.
            note: Gets the reason why nothing can be looked up.
        """
        self._python = python
        self._platform = platform
        self._glibc = glibc if _pair(glibc) <= _pair(NEWEST_GLIBC_OF_UV) else NEWEST_GLIBC_OF_UV
        self._environ = environ
        self._cache_dir = cache_dir
        self._note = note
        self._asker: Asker | None = None
        self._given_up = False
        self._answers: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Offer | None] = {}

    @property
    def was_asked(self) -> bool:
        """Whether what it said, or that it said nothing, went into anything."""
        return self._given_up or bool(self._answers)

    def best(self, name: str, requirements: Sequence[str], constraints: Sequence[str] = ()) -> Offer | None:
        """The newest version of a package that goes with some requirements; None if there is none, or nobody can be asked."""
        key = (name, tuple(requirements), tuple(constraints))
        if key not in self._answers and not self._given_up:
            try:
                self._answers[key] = self._ask(*key)
            except EnvspecError as error:
                self._given_up = True
                self._note(f"no version was looked up: {error.message}")
        return self._answers.get(key)

    def _ask(self, name: str, requirements: Sequence[str], constraints: Sequence[str]) -> Offer | None:
        if self._asker is None:
            self._asker = make_asker(
                uv=find_uv(self._environ),
                environ=self._environ,
                cache_dir=self._cache_dir,
                python=self._python,
                platform=self._platform,
                glibc=self._glibc,
                indexes=(),
                strangers=False,
            )
        alone = len(requirements) == 1 and not constraints
        options = ["--no-deps", *PYLOCK_OPTIONS] if alone else list(PYLOCK_OPTIONS)
        files = {}
        if constraints:
            options.append("--constraints=constraints.txt")
            files["constraints.txt"] = "\n".join(constraints) + "\n"
        ended, pylock = self._asker.compile(
            list(dict.fromkeys(requirements)), options, files=files, timeout_s=TIMEOUT_S
        )
        if ended.returncode != 0:
            return None
        found = next((each.version for each in parse_pylock(pylock) if each.name == name), "")
        if not found:
            return None
        others = [each for each in requirements if each != name]
        proof = f"uv resolves {name} {found} with {', '.join(others)}" if others else f"the index has {name} {found}"
        if constraints:
            proof += ", and every other package stays as it is"
        return Offer(version=found, proof=proof)


def _pair(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
