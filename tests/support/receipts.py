"""Receipts as tests need them: a good one, and pieces to change."""

from __future__ import annotations

from typing import Any


def case(name: str = "one", result: str = "pass", reason: str = "", **figures: Any) -> dict[str, Any]:
    """A case of a run."""
    return {"case": name, "result": result, "reason": reason, "seconds": 0.5, "figures": figures}


def run(name: str = "torch", *cases: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A run of a probe on GPU 0."""
    return {
        "id": name,
        "gpu": 0,
        "mode": "run",
        "result": "pass",
        "reason": "",
        "seconds": 1.5,
        "limit_seconds": 60.0,
        "script": "ab" * 32,
        "cases": list(cases or (case(relative_error={"value": 0.001, "bound": 0.01}),)),
        "stderr": None,
        **changes,
    }


def receipt(*runs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A receipt of some runs; of each probe the summary is its first run's."""
    summary: dict[str, dict[str, str]] = {}
    for each in runs:
        row = {"id": each["id"], "result": each["result"], "reason": each["reason"]}
        if each["id"] not in summary or each["result"] == "fail":
            summary[each["id"]] = row
    probes = [{"id": "tree", "result": "pass", "reason": ""}, *summary.values()]
    return {
        "version": 1,
        "kind": "verify",
        "tool": "envspec 0.1.0",
        "name": "demo",
        "env": "a" * 32,
        "site": "0" * 64,
        "time": "2026-11-30T10:00:00Z",
        "host": {
            "hostname": "ct200",
            "system": "Debian",
            "kernel": "6.1",
            "glibc": "2.36",
            "driver": "580.95.05",
            "gpus": [{"name": "NVIDIA H200", "compute": "9.0", "memory_mib": 143771}],
        },
        "variables": {},
        "prefix": "/opt/envspec/envs/" + "a" * 32 + "-demo",
        "set": "quick",
        "seed": 7,
        "verified": not any(each["result"] == "fail" for each in runs),
        "probes": probes,
        "runs": list(runs),
        "left_out": [],
        "imports": None,
        "seconds": {"probes": 2.5},
        **changes,
    }
