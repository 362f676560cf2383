"""`envspec verify --python`: a venv that envspec did not build."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envspec.cli.output import make_reporter, say, say_json
from envspec.cli.proofs import Keeping, failure_of, proof_to_json, say_proof
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.agent.evidence import Evidence
    from builder.agent.probe_scripts import ProbeOrder
    from builder.foreign import PackageComparison, Venv
    from builder.progress import Reporter
    from envspec.cli.options import Inputs
    from envspec.spec import Spec

SHOWN = 10


def verify_venv(
    inputs: Inputs,
    python: Path,
    order: ProbeOrder | None,
    keeping: Keeping,
    *,
    now: str,
    as_json: bool,
    quiet: bool,
) -> int:
    """Compare a venv with the lock, import, run probes, and say what was found.

    Args:
        inputs: The spec and its lock.
        python: The interpreter of the venv, or its folder.
        order: Which probes; None for none.
        keeping: What becomes of the receipt.
        now: RFC 3339 in UTC.
        as_json: Whether to print one JSON object.
        quiet: Whether to show no progress.

    Returns:
        The exit code: 1 if an import or a probe failed. Packages that are not the locked ones are named, and are no failure.

    Raises:
        EnvspecError: There is no lock, or no Python at the path.
    """
    from builder.explaining import causes_of  # noqa: PLC0415
    from builder.foreign import ask_python, compare_packages, count_kinds  # noqa: PLC0415
    from envspec.receipt import receipt_of  # noqa: PLC0415

    spec, lock = inputs.parse_spec(), inputs.parse_lock()
    reporter = make_reporter(quiet=quiet)
    venv = ask_python(python, os.environ)
    with reporter.stage("comparing", total=len(lock.packages), unit="packages") as advance:
        packages = compare_packages(venv, lock, advance)
    evidence = _prove(spec, venv, order, reporter)
    counts = count_kinds(packages)
    receipt = receipt_of(
        evidence.receipt(
            "venv",
            time=now,
            name=lock.name,
            env=lock.env,
            site=lock.site,
            interpreter={"path": os.fspath(venv.python), "version": venv.version},
            verified=not evidence.failed and evidence.set != "chosen",
            venv={
                "python": os.fspath(venv.python),
                "version": venv.version,
                "packages": counts,
                "differ": [each.to_json() for each in packages if each.kind != "locked"],
            },
        ),
        name="the receipt",
    )
    kept = keeping.keep(receipt)
    failure = failure_of(receipt, lock, inputs.lock_name, f"--python {venv.python}")
    if as_json:
        record: dict[str, Any] = {
            "host": "localhost",
            "env": None,
            "site": None,
            "locked_env": lock.env,
            "path": os.fspath(venv.prefix),
            "python": {"path": os.fspath(venv.python), "version": venv.version},
            "generation": None,
            "built": False,
            "packages": [each.to_json() for each in packages],
            "package_counts": counts,
            **proof_to_json(receipt, spec, causes_of(receipt, lock) if receipt.failed else {}),
            "receipt": None if kept is None else os.fspath(kept),
            "seconds": evidence.seconds,
        }
        say_json({"hosts": [record]})
        return FOUND_WRONG if receipt.failed else 0
    say(f"python   {venv.python}  {venv.version}")
    say(f"lock     {lock.env}")
    _say_packages(packages, counts, len(lock.packages))
    say_proof(receipt, spec)
    if kept is not None:
        say(f"receipt  {kept}{', signed' if keeping.key is not None else ''}")
    if failure is not None:
        raise failure
    if evidence.imports is not None and evidence.imports.result == "fail":
        raise EnvspecError(
            f"the venv does not import: {evidence.imports.reason}",
            input_name=f"{inputs.spec_name}, [verify] imports",
            hint=evidence.imports.hint,
            exit_code=FOUND_WRONG,
        )
    return 0


def _prove(spec: Spec, venv: Venv, order: ProbeOrder | None, reporter: Reporter) -> Evidence:
    from builder.agent.evidence import begin  # noqa: PLC0415
    from builder.agent.imports import prove_imports  # noqa: PLC0415
    from builder.agent.probe_scripts import choose_probes, read_scripts  # noqa: PLC0415
    from builder.agent.probing import ProbePlace, run_probes, visible_gpus  # noqa: PLC0415
    from builder.agent.proving import IMPORT_TIMEOUT_S, probe_of  # noqa: PLC0415

    evidence = begin(os.environ, venv.prefix)
    with tempfile.TemporaryDirectory(prefix="envspec-verify-") as folder:
        scratch = Path(folder)
        if spec.verify.imports and not (order is not None and order.only):
            reporter.note("importing " + ", ".join(spec.verify.imports))
            (scratch / "imports").mkdir()
            proof = prove_imports(
                venv.python,
                spec.verify.imports,
                env_root=venv.site,
                scratch=scratch / "imports",
                environ=os.environ,
                timeout_s=IMPORT_TIMEOUT_S,
                libraries=spec.target.libraries,
            )
            evidence.imports = proof
            evidence.probes.append(probe_of(proof))
        if order is not None:
            scripts = read_scripts()
            choice = choose_probes(scripts, order, venv.site)
            (scratch / "run").mkdir()
            place = ProbePlace(
                python=venv.python,
                prefix=venv.prefix,
                site=venv.site,
                state=scratch / "state",
                scratch=scratch / "run",
            )
            gpus = visible_gpus(evidence.machine["gpus"], os.environ)
            runs = run_probes(scripts, choice, order, place, gpus, os.environ, reporter)
            evidence.add_runs(order, runs, choice.left_out)
    return evidence


def _say_packages(packages: Sequence[PackageComparison], counts: dict[str, int], total: int) -> None:
    say(f"packages {counts['locked']} of {total} are bit for bit the locked ones")
    for kind in ("edited", "unpatched", "other build", "other version"):
        for each in [each for each in packages if each.kind == kind]:
            say(f"  {kind:13} {each.package}: {each.detail}{f' (CUDA {each.cuda})' if each.cuda else ''}")
    for kind in ("missing", "extra"):
        names = [each.package for each in packages if each.kind == kind]
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            say(f"  {kind:13} {len(names)}: {', '.join(names[:SHOWN])}{more}")
