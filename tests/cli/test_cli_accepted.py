"""Whose waivers count for a venv that envspec built: those of its own lock, and of no other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from envspec.cli.accepted import accepted_in, lock_digest
from envspec.lock import compute_env_id
from envspec.lock_toml import dump_lock, parse_lock
from tests.support.facts import waiver
from tests.support.locks import lock_text

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_waivers_are_those_of_the_lock_of_that_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = parse_lock(lock_text("served", []), input_name="served.lock")
    lock = replace(plain, waivers=(waiver("dead-extension", "demo"),))
    lock = replace(lock, env=compute_env_id(lock))
    spec = tmp_path / "served.toml"
    assert accepted_in(lock.env, None) == ()
    assert lock_digest(None) == ""
    spec.write_text("envspec = 1\nname = 'served'\n", encoding="utf-8")
    assert lock_digest(spec) == ""
    spec.with_suffix(".lock").write_text(dump_lock(lock), encoding="utf-8")
    assert [each.check for each in accepted_in(lock.env, None)] == ["dead-extension"]
    assert accepted_in("b" * 32, spec) == ()
    assert len(lock_digest(spec)) == 64
    spec.with_suffix(".lock").write_text("torn = [", encoding="utf-8")
    assert accepted_in(lock.env, spec) == ()
