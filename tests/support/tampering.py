"""What `lock --check` says of edited locks, in this process: a thousand of them cost a few seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.lock_proving import LockProver
from builder.locking import read_all_series, stale_reasons
from envspec.errors import EnvspecError
from envspec.lock_toml import parse_lock
from envspec.spec_toml import parse_spec

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """What was said of a lock."""

    caught_by: str
    """`form`: the lock contradicts itself; `spec`: the spec or a patch says otherwise; `wheels`: a wheel does; empty: nothing was found."""

    said: str


class Judge:
    """Judges copies of one lock."""

    def __init__(self, spec_path: Path, lock_path: Path, facts: Path) -> None:
        self._name = lock_path.name
        self._spec = parse_spec(spec_path.read_text(encoding="utf-8"), input_name=spec_path.name)
        self._series = read_all_series(self._spec, spec_path.parent)
        self._prover = LockProver(self._spec, facts)

    def verdict(self, text: str, *, measured: bool = True) -> Caught:
        """What `lock --check` says of a text.

        Args:
            text: Of a lock.
            measured: Whether the facts of every wheel have to be there.
        """
        try:
            lock = parse_lock(text, input_name=self._name)
        except EnvspecError as error:
            return Caught(caught_by="form", said=str(error))
        reasons = stale_reasons(self._spec, lock, self._series)
        if reasons:
            return Caught(caught_by="spec", said="\n".join(reasons))
        proof = self._prover.prove(lock)
        assert not (measured and proof.unmeasured)
        return Caught(
            caught_by="wheels" if proof.problems else "", said="\n".join(each.where for each in proof.problems)
        )
