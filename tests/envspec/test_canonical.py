"""The encodings that digests stand on, against published vectors and a second implementation that is as naive as can be."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from envspec.canonical import canonical_json, encode_record, record_sha256, short_id
from envspec.lock import Lock, LockedOverlay, LockedPackage, compute_env_id
from envspec.spec import Waiver
from tests.conftest import DATA
from tests.support.strategies import digests, locks, texts, wheel_name

RECORDS = json.loads((DATA / "canonical" / "records.json").read_text(encoding="utf-8"))
ENV_IDS = json.loads((DATA / "canonical" / "env-ids.json").read_text(encoding="utf-8"))

labels = texts.filter(lambda text: "\0" not in text)
field_lists = st.lists(st.tuples(texts, texts), max_size=4)


def naive_record(label: str, fields: list[tuple[str, str]]) -> bytes:
    """The encoding of a record as the docstring of `envspec.canonical` tells it, one byte after the other."""
    out = bytearray()
    out.extend(b"envspec")
    out.append(0)
    out.extend(label.encode("utf-8"))
    out.append(0)
    for field in fields:
        for text in field:
            encoded = text.encode("utf-8")
            for digit in str(len(encoded)):
                out.append(ord(digit))
            out.append(ord(":"))
            for byte in encoded:
                out.append(byte)
    return bytes(out)


def naive_short_id(sha256_hex: str) -> str:
    """Five bits a character, from the front."""
    bits = "".join(f"{int(digit, 16):04b}" for digit in sha256_hex)[:160]
    alphabet = "abcdefghijklmnopqrstuvwxyz234567"
    return "".join(alphabet[int(bits[start : start + 5], 2)] for start in range(0, 160, 5))


def naive_env_id(lock: Lock) -> str:
    """The env id as `docs/lock-format.md` tells it."""
    fields = [("python", lock.python), ("platform", lock.platform)]
    for package in sorted(lock.packages, key=lambda package: package.name):
        sha256 = package.sha256
        for overlay in lock.overlays:
            if overlay.package == package.name:
                sha256 = overlay.sha256
        fields.append(("wheel", package.name + " " + sha256))
    owners = {(waiver.path, waiver.owner) for waiver in lock.waivers if waiver.owner != ""}
    for path, owner in sorted(owners):
        fields.append(("owner", owner + " " + path))
    return naive_short_id(hashlib.sha256(naive_record("env 1", fields)).hexdigest())


def lock_of(vector: dict[str, Any]) -> Lock:
    """A lock with the inputs of a vector, and something in every other field."""
    packages = []
    overlays = []
    for name, base, patched in vector["wheels"]:
        packages.append(
            LockedPackage(
                name=name, version="1", index="default", file=wheel_name(name, "1"), size=1, sha256=base, tree="a" * 64
            )
        )
        if patched is not None:
            overlays.append(
                LockedOverlay(
                    package=name,
                    series="series",
                    base_sha256=base,
                    patches=(),
                    files=(),
                    version="1+a",
                    file=wheel_name(name, "1+a"),
                    size=1,
                    sha256=patched,
                    tree="b" * 64,
                )
            )
    return Lock(
        spec_sha256="c" * 64,
        env="",
        site="d" * 64,
        name="x",
        snapshot="",
        python=vector["python"],
        python_exact="",
        platform=vector["platform"],
        glibc="2.35",
        libraries=(),
        cuda_toolkit="",
        cuda_compute=(),
        packages=tuple(packages),
        overlays=tuple(overlays),
        waivers=tuple(
            Waiver(check="file-collision", package="x", path=path, owner=owner, reason="r")
            for path, owner in vector["owners"]
        ),
    )


@pytest.mark.parametrize("vector", RECORDS, ids=lambda vector: vector["says"])
def test_a_record_has_the_published_bytes_and_digest(vector: dict[str, Any]) -> None:
    fields = [(name, value) for name, value in vector["fields"]]
    assert encode_record(vector["label"], fields).hex() == vector["hex"]
    assert naive_record(vector["label"], fields).hex() == vector["hex"]
    assert (
        record_sha256(vector["label"], fields)
        == vector["sha256"]
        == hashlib.sha256(bytes.fromhex(vector["hex"])).hexdigest()
    )
    assert short_id(vector["sha256"]) == vector["short_id"] == naive_short_id(vector["sha256"])


@given(labels, field_lists)
def test_both_implementations_encode_every_record_alike(label: str, fields: list[tuple[str, str]]) -> None:
    assert encode_record(label, fields) == naive_record(label, fields)
    digest = record_sha256(label, fields)
    assert short_id(digest) == naive_short_id(digest)


@given(labels, field_lists, labels, field_lists)
def test_different_records_have_different_bytes(
    label: str, fields: list[tuple[str, str]], other_label: str, other_fields: list[tuple[str, str]]
) -> None:
    assume((label, fields) != (other_label, other_fields))
    assert encode_record(label, fields) != encode_record(other_label, other_fields)


@given(labels, field_lists, st.data())
def test_a_shifted_boundary_between_fields_changes_the_bytes(
    label: str, fields: list[tuple[str, str]], data: st.DataObject
) -> None:
    flat = "".join(name + value for name, value in fields)
    cut = sorted(data.draw(st.lists(st.integers(0, len(flat)), min_size=3, max_size=3)))
    other = [(flat[: cut[0]], flat[cut[0] : cut[1]]), (flat[cut[1] : cut[2]], flat[cut[2] :])]
    assume(other != fields)
    assert encode_record(label, fields) != encode_record(label, other)


@pytest.mark.parametrize("vector", ENV_IDS, ids=lambda vector: vector["says"])
def test_an_env_id_is_the_published_one(vector: dict[str, Any]) -> None:
    lock = lock_of(vector)
    assert compute_env_id(lock) == vector["env"]
    assert naive_env_id(lock) == vector["env"]


@given(locks())
def test_both_implementations_give_every_lock_the_same_env_id(lock: Lock) -> None:
    assert compute_env_id(lock) == naive_env_id(lock)


@given(locks(), digests)
def test_what_does_not_decide_the_tree_does_not_move_the_env_id(lock: Lock, digest: str) -> None:
    other = replace(
        lock,
        spec_sha256=digest,
        site=digest,
        name="other",
        snapshot="",
        python_exact="",
        glibc="2.17",
        libraries=(),
        cuda_toolkit="",
        cuda_compute=(),
        overrides=(),
        findings=(),
        waivers=tuple(replace(waiver, reason="other") for waiver in lock.waivers if waiver.owner),
        packages=tuple(replace(package, index="mirror", size=0, requires=(), hooks=()) for package in lock.packages),
    )
    assert compute_env_id(other) == lock.env


@given(locks(), st.data())
def test_what_decides_the_tree_moves_the_env_id(lock: Lock, data: st.DataObject) -> None:
    def moved(sha256: str) -> str:
        return hashlib.sha256(sha256.encode()).hexdigest()

    others = [replace(lock, python="3.9"), replace(lock, platform="other")]
    others.append(
        replace(lock, waivers=(*lock.waivers, Waiver(check="c", package="p", path="//", owner="o", reason="r")))
    )
    if lock.packages:
        position = data.draw(st.integers(0, len(lock.packages) - 1))
        before, package, after = lock.packages[:position], lock.packages[position], lock.packages[position + 1 :]
        others.append(replace(lock, packages=(*before, *after)))
        if package.name not in {overlay.package for overlay in lock.overlays}:
            others.append(replace(lock, packages=(*before, replace(package, sha256=moved(package.sha256)), *after)))
    for overlay in lock.overlays:
        changed = replace(overlay, sha256=moved(overlay.sha256))
        others.append(replace(lock, overlays=tuple(changed if found == overlay else found for found in lock.overlays)))
    for other in others:
        assert compute_env_id(other) != lock.env


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ({"b": 1, "a": [True, None, "ü"]}, '{"a":[true,null,"ü"],"b":1}'),
        ({}, "{}"),
        ("\u2028\x00", '"\u2028\\u0000"'),
        ({"é": 1, "z": 2, "a": {"d": 1, "c": 2}}, '{"a":{"c":2,"d":1},"z":2,"é":1}'),
    ],
)
def test_canonical_json_has_sorted_keys_and_no_spaces_in_utf_8(value: Any, encoded: str) -> None:
    assert canonical_json(value) == encoded.encode()


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


@given(json_values)
def test_canonical_json_comes_back_and_does_not_depend_on_the_order_of_keys(value: Any) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(item) for item in value] if isinstance(value, list) else value

    assert json.loads(canonical_json(value)) == value
    assert canonical_json(turned(value)) == canonical_json(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_canonical_json_refuses_what_json_does_not_have(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)
