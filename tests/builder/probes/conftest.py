"""Probes run by themselves say `import kit`: here it is the same module as `builder.probes.kit`."""

from __future__ import annotations

import sys

from builder.probes import kit

sys.modules.setdefault("kit", kit)
