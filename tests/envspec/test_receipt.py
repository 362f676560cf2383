"""Receipts: one form, no contradiction, and hostile ones are refused by name."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.claims import claims_of
from envspec.errors import COULD_NOT_LOOK, FOUND_WRONG, EnvspecError
from envspec.likely import likely_causes
from envspec.probe import Case, Figure, ProbeRun
from envspec.receipt import DEPTH_LIMIT, SIZE_LIMIT_BYTES, encode_receipt, parse_receipt, receipt_of, summaries
from tests.support.receipts import case, receipt, run

GOOD = receipt(run(), run("triton", case("add")))


def refusal(raw: bytes) -> EnvspecError:
    with pytest.raises(EnvspecError) as caught:
        parse_receipt(raw, name="x.json")
    assert caught.value.message.startswith("`x.json` is refused as a receipt: ")
    assert "\x1b" not in str(caught.value)
    return caught.value


def test_a_receipt_is_read_as_it_was_written() -> None:
    found = parse_receipt(encode_receipt(GOOD), name="x.json")
    assert (found.kind, found.env, found.host_name, found.set, found.verified) == (
        "verify",
        "a" * 32,
        "ct200",
        "quick",
        True,
    )
    assert found.probes[1] == ("torch", "pass", "")
    assert found.runs[0].cases[0].figures == (Figure(name="relative_error", value=0.001, bound=0.01),)
    assert encode_receipt(found.fields) == encode_receipt(GOOD)


def test_equal_receipts_are_equal_bytes_whatever_the_order_of_keys() -> None:
    assert encode_receipt(dict(reversed(GOOD.items()))) == encode_receipt(GOOD)


NOT_JSON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is no JSON of ours"),
    "too long": (b" " * (SIZE_LIMIT_BYTES + 1), f"it has {SIZE_LIMIT_BYTES + 1} bytes"),
    "no UTF-8": (b'{"version": "\xff"}', "it is not UTF-8"),
    "half a surrogate pair": (b'{"version": 1, "x": "\\ud800"}', "it is not UTF-8"),
    "a list": (b"[]", "it is no JSON object"),
    "deep": (b'{"a":' * 50 + b"1" + b"}" * 50, f"it is nested deeper than {DEPTH_LIMIT} levels"),
    "very deep": (b"[" * 200_000, f"it is nested deeper than {DEPTH_LIMIT} levels"),
    "a key twice": (b'{"version": 1, "env": "a", "env": "b"}', "an object has a key twice"),
    "nan": (b'{"version": 1, "x": NaN}', "NaN is no number"),
    "infinite": (b'{"version": 1, "x": 1e999}', "it is no JSON of ours"),
    "a number of 5000 digits": (b'{"version": ' + b"1" * 5000 + b"}", "it is no JSON of ours"),
    "a terminal's orders": (b'{"\x1b[2J', "it is no JSON of ours"),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_no_receipt_is_refused(name: str) -> None:
    raw, why = NOT_JSON[name]
    error = refusal(raw)
    assert why in error.message
    assert error.exit_code == FOUND_WRONG


def test_another_format_cannot_be_looked_at() -> None:
    error = refusal(encode_receipt({**GOOD, "version": 2}))
    assert "it has format 2, this envspec knows 1" in error.message
    assert error.exit_code == COULD_NOT_LOOK


@pytest.mark.parametrize(
    "raw",
    [
        json.dumps(GOOD).encode(),
        encode_receipt(GOOD)[:-1],
        encode_receipt(GOOD) + b"\n",
        encode_receipt(GOOD).replace(b"0.001", b"1e-3"),
        encode_receipt(GOOD).replace(b'"ct200"', b'"\\u0063t200"'),
        b"\xef\xbb\xbf" + encode_receipt(GOOD),
    ],
    ids=["one line", "no line end", "one too many", "another spelling of a number", "an escape", "a mark"],
)
def test_another_form_of_the_same_is_refused(raw: bytes) -> None:
    assert "is refused as a receipt: it is no" in refusal(raw).message


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(GOOD), **changes}


FAILED = run("torch", case("one", "fail", "error 0.5"), result="fail", reason="one: error 0.5")
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "an env id that leads elsewhere": (changed(env="../../etc"), "env", "it is `../../etc`"),
    "a site that is no digest": (changed(site="0" * 63), "site", "it is `000"),
    "a kind of its own": (changed(kind="proof"), "kind", "it is `proof`"),
    "a time that leads elsewhere": (changed(time="2026/../x"), "time", "it is `2026/../x`"),
    "no host": (changed(host="ct200"), "host", "it says nothing of the machine"),
    "verified by a word": (changed(verified="yes"), "verified", "it is neither true nor false"),
    "GPUs that are none": (changed(host={"hostname": "x", "gpus": 5}), "host.gpus", "it has another shape"),
    "drift that is none": (changed(drift=[["modified"]]), "drift", "it has another shape"),
    "variables that are none": (changed(variables={"LD_PRELOAD": 1}), "variables", "it has another shape"),
    "no runs": (changed(runs=None), "probes", "TypeError"),
    "a result of its own": (changed(probes=[{"id": "tree", "result": "great", "reason": ""}]), "probes", "`great`"),
    "characters that a terminal obeys": (changed(host={"hostname": "\x1b[2J"}), "", "a terminal would obey"),
    "text that runs backwards": (changed(left_out=[["x", "\u202e"]]), "", "a terminal would obey"),
    "a probe that passes though a case failed": (
        receipt({**FAILED, "result": "pass", "reason": ""}),
        "torch, GPU 0",
        "it passes, and its cases do not",
    ),
    "a probe that passes without a case": (receipt({**run(), "cases": []}), "torch, GPU 0", "its cases do not"),
    "a case that passes beyond its bound": (
        receipt(run("torch", case(relative_error={"value": 0.5, "bound": 0.1}))),
        "torch, GPU 0, one",
        "it claims to pass, but `relative_error` is 0.5, the bound 0.1",
    ),
    "a case that passes with nan": (
        receipt(run("torch", case(speed={"value": "nan"}))),
        "torch, GPU 0, one",
        "`speed` is nan",
    ),
    "compiled that claims to have run": (
        receipt(run("triton", case("k"), result="compiled")),
        "triton, GPU 0",
        "it is compiled, and its cases are not",
    ),
    "run without a GPU": (
        receipt(run("triton", case("k"), mode="compile")),
        "triton, GPU 0",
        "it was only compiled, and passes",
    ),
    "a summary that is better than its runs": (
        changed(runs=[FAILED], probes=[{"id": "torch", "result": "pass", "reason": ""}], verified=False),
        "torch",
        "its runs fail, the summary says pass",
    ),
    "verified though a proof failed": (receipt(FAILED, verified=True), "verified", "it says so, and a proof failed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_receipt_that_contradicts_itself_is_refused(name: str) -> None:
    fields, where, why = WRONG[name]
    error = refusal(encode_receipt(fields))
    assert any(problem.where == where and why in problem.message for problem in error.problems), error


def test_everything_that_is_wrong_is_said_at_once() -> None:
    assert len(refusal(encode_receipt(changed(env="x", site="y", kind="z"))).problems) == 3


def test_a_failed_receipt_that_says_so_is_good() -> None:
    found = receipt_of(receipt(FAILED), name="x")
    assert (found.failed, found.verified) == (True, False)


def test_a_summary_names_the_first_gpu_and_counts_the_others() -> None:
    runs = tuple(
        ProbeRun(id="torch", gpu=gpu, mode="run", result=result, reason=reason, cases=(Case(case="a", result=result),))
        for gpu, result, reason in ((0, "pass", ""), (1, "fail", "a: x"), (2, "fail", "a: y"))
    )
    assert summaries(runs) == [{"id": "torch", "result": "fail", "reason": "GPU 1: a: x (and on 1 more GPUs)"}]


@given(st.binary(max_size=200))
def test_no_bytes_give_anything_but_a_receipt_or_a_refusal(raw: bytes) -> None:
    with pytest.raises(EnvspecError):
        parse_receipt(raw, name="x.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(GOOD)), JSON)
def test_no_value_in_the_place_of_another_breaks_the_reader(key: str, value: Any) -> None:
    try:
        found = receipt_of({**GOOD, key: value}, name="x.json")
        claims_of(found, ("9.0",))
        for each in found.runs:
            likely_causes(each, found, None, {})
    except EnvspecError as error:
        assert error.problems  # noqa: PT017 - a good one raises nothing


# What is claimed on which ground.


def test_a_kernel_that_ran_on_one_gpu_rests_on_the_wheels_for_the_other_compute_capability() -> None:
    claims = claims_of(receipt_of(GOOD, name="x"), ("9.0", "12.0"))
    assert claims.lines() == (
        "run on a GPU: torch (9.0), triton (9.0)",
        "from the wheels only: torch (12.0), triton (12.0)",
    )


def test_without_a_gpu_kernels_are_compiled_or_rest_on_the_wheels() -> None:
    skipped = run("torch", gpu=None, mode="skip", result="skip", reason="no GPU", cases=[], script=None)
    compiled = run("triton", case("k-sm90", "compiled"), gpu=None, mode="compile", result="compiled")
    about_host = run("libraries", gpu=None)
    found = receipt_of(receipt(skipped, compiled, about_host, host={"hostname": "ci", "gpus": []}), name="x")
    claims = claims_of(found, ("9.0", "12.0"))
    assert claims.lines() == ("compiled only: triton (9.0, 12.0)", "from the wheels only: torch (9.0, 12.0)")
    assert claims.to_json()["run"] == {}


def test_what_failed_is_claimed_for_nothing() -> None:
    claims = claims_of(receipt_of(receipt(FAILED), name="x"), ("9.0",))
    assert claims.lines() == ("failed: torch",)
