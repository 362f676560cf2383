"""`tag-mismatch`, `local-version-mismatch`, `version-mismatch`, `hash-changed` and `yanked`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envspec.checks import ClosureWheel, run_checks
from tests.support.facts import Row, fails, locked, make_closure, make_facts, make_spec, passes, sha256_of, waiver

if TYPE_CHECKING:
    from envspec.facts import WheelFacts

LINUX = "cp312-cp312-manylinux_2_28_x86_64"
KERNELS = make_facts("kernels")
SGLANG = make_facts("sglang", "0.5.11+ddtree.1a2b3c4d")


def _named(filename: str, version: str = "1.0", name: str = "kernels") -> WheelFacts:
    return make_facts(name, version, filename=filename)


PATCHED = ClosureWheel(
    facts=SGLANG, base_file="sglang-0.5.11-py3-none-any.whl", base_sha256=sha256_of("the base of sglang")
)

ROWS = (
    passes("tag-mismatch", "a pure wheel", make_closure([KERNELS])),
    passes("tag-mismatch", "a wheel of the target", make_closure([make_facts("kernels", tag=LINUX)])),
    passes(
        "tag-mismatch",
        "a compressed set of which one fits, written so in WHEEL too",
        make_closure([make_facts("x", tag="py2.py3-none-any", wheel_tags=["py2.py3-none-any"])]),
    ),
    passes(
        "tag-mismatch",
        "an old name of a platform in WHEEL, the new one in the file name",
        make_closure(
            [make_facts("x", tag="cp310-abi3-manylinux_2_17_x86_64", wheel_tags=["cp310-abi3-manylinux2014_x86_64"])]
        ),
    ),
    passes(
        "tag-mismatch",
        "an old name of a platform that the target accepts by its new one",
        make_closure([make_facts("x", tag="cp310-abi3-manylinux2014_x86_64")]),
    ),
    passes("tag-mismatch", "no tags in WHEEL", make_closure([make_facts("x", wheel_tags=[])])),
    fails(
        "tag-mismatch",
        "a wheel of another machine",
        make_closure([make_facts("kernels", tag="cp312-cp312-manylinux_2_28_aarch64")]),
        "error",
        "kernels 1.0 is built for `cp312-cp312-manylinux_2_28_aarch64`, which the target does not install",
    ),
    fails(
        "tag-mismatch",
        "a target that accepts nothing",
        make_closure([KERNELS], accepted_tags=[]),
        "error",
    ),
    fails(
        "tag-mismatch",
        "a file name that is none",
        make_closure([_named("kernels.whl")]),
        "error",
        "`kernels.whl` is not the name of a wheel file",
    ),
    fails(
        "tag-mismatch",
        "other tags in WHEEL",
        make_closure([make_facts("kernels", tag=LINUX, wheel_tags=["cp312-cp312-manylinux_2_28_aarch64"])]),
        "warning",
        "kernels 1.0 has other tags in its file name than in WHEEL: `cp312-cp312-manylinux_2_28_aarch64` and"
        " `cp312-cp312-manylinux_2_28_x86_64`",
    ),
    fails(
        "tag-mismatch",
        "fewer tags in WHEEL, as in py-spy",
        make_closure([make_facts("py-spy", tag="py2.py3-none-any", wheel_tags=["py3-none-any"])]),
        "info",
        "py-spy 1.0 has other tags in its file name than in WHEEL: `py2-none-any`",
    ),
    fails(
        "tag-mismatch",
        "a line of WHEEL that is no tag",
        make_closure([make_facts("x", wheel_tags=["py3-none-any", "any"])]),
        "info",
    ),
    passes("local-version-mismatch", "equal versions", make_closure([make_facts("torch", "2.11.0+cu130")])),
    passes(
        "local-version-mismatch",
        "a local part that is written otherwise",
        make_closure([_named("kernels-1.0+CU.130-py3-none-any.whl", "1.0.0+cu.130")]),
    ),
    passes(
        "local-version-mismatch",
        "versions that differ altogether",
        make_closure([_named("kernels-2.0-py3-none-any.whl")]),
    ),
    fails(
        "local-version-mismatch",
        "a local part in the file name only",
        make_closure([_named("kernels-1.0+cu130-py3-none-any.whl")]),
        "warning",
        "kernels 1.0 has version `1.0+cu130` in its file name and `1.0` in METADATA",
    ),
    fails(
        "local-version-mismatch",
        "another local part",
        make_closure([_named("kernels-1.0+cu130-py3-none-any.whl", "1.0+cu128")]),
        "warning",
    ),
    passes("version-mismatch", "equal versions", make_closure([KERNELS])),
    passes(
        "version-mismatch",
        "versions and names that are written otherwise",
        make_closure([_named("Kernels.Cuda-1.0.0-py3-none-any.whl", "1", "kernels-cuda")]),
    ),
    passes(
        "version-mismatch", "only the local part differs", make_closure([_named("kernels-1.0+cu130-py3-none-any.whl")])
    ),
    passes(
        "version-mismatch", "METADATA without a version", make_closure([_named("kernels-1.0-py3-none-any.whl", "")])
    ),
    passes("version-mismatch", "a file name that is none", make_closure([_named("kernels.whl")])),
    fails(
        "version-mismatch",
        "another version",
        make_closure([_named("kernels-2.0-py3-none-any.whl")]),
        "error",
        "kernels 1.0 has version `2.0` in its file name and `1.0` in METADATA",
    ),
    fails(
        "version-mismatch",
        "another name",
        make_closure([_named("other_kernels-1.0-py3-none-any.whl")]),
        "error",
        "kernels 1.0 has the name `other-kernels` in its file name and `kernels` in METADATA",
    ),
    fails(
        "version-mismatch",
        "a version that is none",
        make_closure([_named("kernels-1.0-py3-none-any.whl", "one")]),
        "error",
    ),
    fails(
        "version-mismatch",
        "a version with more digits than Python converts",
        make_closure([_named("kernels-1.0-py3-none-any.whl", "9" * 5000)]),
        "error",
    ),
    passes("hash-changed", "no last lock", make_closure([KERNELS])),
    passes("hash-changed", "the file of the last lock", make_closure([KERNELS], previous=[locked(KERNELS)])),
    passes(
        "hash-changed",
        "another file of the same package",
        make_closure([KERNELS], previous=[locked(make_facts("kernels", "0.9"))]),
    ),
    fails(
        "hash-changed",
        "other bytes under the same name",
        make_closure([KERNELS], previous=[locked(KERNELS, sha256="0" * 64)]),
        "error",
        "kernels 1.0: `kernels-1.0-py3-none-any.whl` is another file than in the last lock",
    ),
    passes(
        "hash-changed",
        "an overlay on the same base",
        make_closure([PATCHED], previous=[locked(make_facts("sglang", "0.5.11"), sha256=PATCHED.base_sha256)]),
    ),
    fails(
        "hash-changed",
        "an overlay on other bytes under the same name",
        make_closure([PATCHED], previous=[locked(make_facts("sglang", "0.5.11"))]),
        "error",
        "sglang 0.5.11+ddtree.1a2b3c4d: `sglang-0.5.11-py3-none-any.whl` is another file than in the last lock",
    ),
    passes("yanked", "a file that is offered", make_closure([KERNELS])),
    fails(
        "yanked",
        "a file that was withdrawn",
        make_closure(
            [ClosureWheel(facts=make_facts("pydantic-core", "2.41.3"), yanked="corrupted wheel got uploaded")]
        ),
        "error",
        "pydantic-core 2.41.3 was withdrawn by its project: corrupted wheel got uploaded",
    ),
    passes(
        "yanked",
        "a waiver",
        make_closure([ClosureWheel(facts=KERNELS, yanked="broken")], make_spec(waivers=[waiver("yanked", "kernels")])),
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


def test_evidence_of_a_changed_file_has_both_digests() -> None:
    closure = make_closure([KERNELS], previous=[locked(KERNELS, sha256="0" * 64)])
    assert run_checks(closure).findings[0].evidence == (
        f"last lock: sha256 {'0' * 64}",
        f"now: sha256 {KERNELS.sha256} from index default",
    )


def test_evidence_of_a_withdrawn_file_says_who_asks_for_it() -> None:
    wheel = ClosureWheel(facts=KERNELS, yanked="broken", required_by=("sglang", "vllm"))
    assert run_checks(make_closure([wheel])).findings[0].evidence == (
        "kernels-1.0-py3-none-any.whl",
        "required by sglang, vllm",
    )
