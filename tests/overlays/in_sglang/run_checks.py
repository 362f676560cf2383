"""Run the checks of a file, each a function `check_*`, and print one JSON line for each.

    python run_checks.py FILE [NAME ...]

Run by the Python of an environment that holds torch and the patched SGLang, where there is no pytest.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from pathlib import Path


def main(file: str, names: list[str]) -> int:
    """Run the checks; 0 if all of them passed."""
    sys.path.insert(0, str(Path(file).resolve().parent))
    found = runpy.run_path(file)
    wrong = 0
    for name in names or [name for name in found if name.startswith("check_")]:
        reason = ""
        try:
            found[name]()
        except Exception:  # noqa: BLE001 - whatever it is, the check failed
            reason = traceback.format_exc()
            wrong += 1
        line = {"check": name, "result": "fail" if reason else "pass", "reason": reason}
        sys.stdout.write("\n" + json.dumps(line) + "\n")  # SGLang may have left a line open
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
