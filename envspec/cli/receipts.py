"""`envspec receipts verify`, `list` and `show`: the evidence of builds and verifications."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from envspec.cli.hosts import say_table
from envspec.cli.options import JsonOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import error_to_json, print_error, say, say_json
from envspec.cli.proofs import RECEIPTS, computes_of, figure_text
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from builder.receipts import StoredReceipt
    from builder.signing import Signature
    from envspec.cli.options import Inputs

FilesArgument = Annotated[
    list[Path] | None,
    Parameter(help="Files of receipts. Default: all in `receipts/` beside the spec."),
]
SignersOption = Annotated[
    Path | None,
    Parameter(
        name="--signers",
        help="Who may sign: an allowed_signers file of ssh-keygen. Default: receipts/allowed_signers beside the spec.",
    ),
]


def verify(
    files: FilesArgument = None,
    /,
    *,
    signers: SignersOption = None,
    spec: SpecOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check receipts: their one form, that they do not contradict themselves, and who signed them.

    A receipt is good if one of the signers signed exactly these bytes as a receipt. Whether it is about the environment of the lock here is
    said too. Exit 1 if any is not good, or says that something failed.
    """
    from builder.receipts import read_stored  # noqa: PLC0415

    inputs = read_inputs(spec)
    paths = _paths(inputs, files)
    allowed = signers or inputs.spec_path.parent / RECEIPTS / "allowed_signers"
    locked = inputs.parse_lock().env if inputs.lock_bytes is not None else None
    records: list[dict[str, Any]] = []
    errors: list[EnvspecError] = []
    rows: list[tuple[str, ...]] = []
    for path in paths:
        try:
            stored = read_stored(path)
            signature = _signature_of(stored, allowed)
        except EnvspecError as error:
            errors.append(error)
            records.append({"file": os.fspath(path), "good": False, "error": error_to_json(error)})
            rows.append((os.fspath(path), "refused", "", ""))
            continue
        receipt = stored.receipt
        good = signature is not None and signature.good
        said = (
            "not signed"
            if signature is None
            else f"signed by {signature.signer} ({signature.key})"
            if good
            else f"bad signature: {signature.reason}"
        )
        about = (
            "" if locked is None else "of the lock" if receipt.env == locked else "of another environment than the lock"
        )
        proofs = "failed" if receipt.failed else "passed" if receipt.verified else "not verified"
        rows.append((os.fspath(path), said, proofs, about))
        records.append(
            {
                "file": os.fspath(path),
                "good": good and not receipt.failed,
                "signature": None
                if signature is None
                else {
                    "good": signature.good,
                    "signer": signature.signer or None,
                    "key": signature.key or None,
                    "reason": signature.reason or None,
                },
                **_about(stored),
                "of_lock": None if locked is None else receipt.env == locked,
            }
        )
    if as_json:
        say_json({"receipts": records})
    else:
        say_table(("receipt", "signature", "proofs", "environment"), rows)
    for each in errors:
        print_error(each, as_json=False)
    return 0 if all(record["good"] for record in records) else FOUND_WRONG


def list_receipts(
    *,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the receipts in the store and beside the spec, oldest first."""
    from builder.receipts import list_files, read_stored  # noqa: PLC0415

    inputs = read_inputs(spec)
    rows: list[tuple[str, ...]] = []
    records: list[dict[str, Any]] = []
    errors: list[EnvspecError] = []
    for path in list_files((store_root(store) / RECEIPTS, inputs.spec_path.parent / RECEIPTS)):
        try:
            stored = read_stored(path)
        except EnvspecError as error:
            errors.append(error)
            rows.append(("", "", "", "", "refused", os.fspath(path)))
            records.append({"file": os.fspath(path), "error": error_to_json(error)})
            continue
        receipt = stored.receipt
        counts: dict[str, int] = {}
        for _, result, _ in receipt.probes:
            counts[result] = counts.get(result, 0) + 1
        proofs = ", ".join(f"{count} {word}" for word, count in counts.items()) or "none"
        rows.append((receipt.time, stored.host, receipt.kind, receipt.env, proofs, os.fspath(path)))
        records.append({"file": os.fspath(path), **_about(stored)})
    if as_json:
        say_json({"receipts": records})
    elif rows:
        say_table(("time", "host", "kind", "env", "proofs", "file"), rows)
    for each in errors:
        print_error(each, as_json=False)
    return 0


def show(
    file: Annotated[Path, Parameter(help="File of a receipt.")],
    /,
    *,
    spec: SpecOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show a receipt: the machine, each probe with its cases and figures, and what it claims on which ground."""
    from builder.receipts import read_stored  # noqa: PLC0415
    from envspec.claims import claims_of  # noqa: PLC0415

    stored = read_stored(file)
    receipt = stored.receipt
    try:
        computes = computes_of(read_inputs(spec).parse_spec())
    except EnvspecError:
        if spec is not None:
            raise
        computes = ()  # a receipt can be shown anywhere
    if as_json:
        say_json(
            {
                "file": os.fspath(file),
                "signed": stored.signature is not None,
                "claims": claims_of(receipt, computes).to_json(),
                "receipt": dict(receipt.fields),
            }
        )
        return 0
    host = receipt.host
    gpus = host.get("gpus") or []
    say(f"receipt  {receipt.kind} of {receipt.name}, {receipt.time}, by {receipt.tool}")
    say(f"env      {receipt.env}")
    say(f"site     {receipt.site}")
    say(
        f"host     {receipt.host_name}  {host.get('system', '')}, kernel {host.get('kernel', '')}, glibc {host.get('glibc', '')}"
    )
    say(f"driver   {host.get('driver') or 'none'}")
    for index, gpu in enumerate(gpus):
        say(f"GPU {index}    {gpu.get('name')}, compute capability {gpu.get('compute')}, {gpu.get('memory_mib')} MiB")
    say(f"set      {receipt.set}{'' if receipt.verified else ', not verified'}")
    say(f"signed   {'a signature lies beside it' if stored.signature is not None else 'no'}")
    for name, result, reason in receipt.probes:
        say(f"{name}  {result}{f' ({reason})' if reason else ''}")
        for run in receipt.runs:
            if run.id == name and run.mode != "skip":
                say(f"  {run.place or 'host'}: {run.result} in {run.seconds:g} s")
                for case in run.cases:
                    figures = ", ".join(f"{figure.name} {figure_text(figure)}" for figure in case.figures)
                    why = f" ({case.reason})" if case.reason else ""
                    say(f"    {case.case}  {case.result}{why}{f'  {figures}' if figures else ''}")
    for name, reason in receipt.left_out:
        say(f"{name}  left out ({reason})")
    for line in claims_of(receipt, computes).lines():
        say(f"claims   {line}")
    return 0


def _paths(inputs: Inputs, files: list[Path] | None) -> tuple[Path, ...]:
    from builder.receipts import list_files  # noqa: PLC0415

    if files:
        return tuple(files)
    found = list_files((inputs.spec_path.parent / RECEIPTS,))
    if not found:
        raise EnvspecError(
            f"there are no receipts in `{RECEIPTS}/` beside `{inputs.spec_name}`",
            hint="`envspec verify --save` leaves one there; or name files",
        )
    return found


def _signature_of(stored: StoredReceipt, signers: Path) -> Signature | None:
    """What is to be said of its signature; None if there is none."""
    if stored.signature is None:
        return None
    from builder.signing import check  # noqa: PLC0415 - only where something is signed

    return check(stored.raw, stored.signature, signers, os.environ)


def _about(stored: StoredReceipt) -> dict[str, Any]:
    receipt = stored.receipt
    return {
        "host": stored.host,
        "kind": receipt.kind,
        "time": receipt.time,
        "env": receipt.env,
        "site": receipt.site,
        "set": receipt.set,
        "verified": receipt.verified,
        "probes": [{"id": name, "result": result, "reason": reason} for name, result, reason in receipt.probes],
        "signed": stored.signature is not None,
    }
