"""Resident memory of the idle stack of `make demo`, agents counted apart. Target: under 1.5 GB.

Proportional set size: a page that several processes share counts once over all of them. The resident set sizes
summed, which count it once for each, stand beside it.
"""

import os
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.report import print_rows
from mlmodelscope.settings import read_settings
from mlmodelscope.stack import DEFAULT_FRAMEWORKS, AgentSpec, Stack

SETTLE_S = 3.0


def main() -> None:
    """Start the stack of the demo, wait until it is idle, print what each process holds."""
    with tempfile.TemporaryDirectory() as directory:
        settings = read_settings(data_dir=Path(directory), api_port=0)
        stack = Stack(settings, [AgentSpec(name) for name in DEFAULT_FRAMEWORKS])
        try:
            stack.start()
            time.sleep(SETTLE_S)
            rows = [_row(process.name, process.pid or 0) for process in stack.processes]
        finally:
            stack.stop()
    for title, wanted in (("stack", False), ("agents", True)):
        chosen = [row for row in rows if str(row["process"]).startswith("agent-") == wanted]
        rows.append(
            {
                "process": f"all of {title}",
                "resident MB": round(sum(float(str(row["resident MB"])) for row in chosen), 1),
                "proportional MB": round(sum(float(str(row["proportional MB"])) for row in chosen), 1),
                "target MB": "-" if wanted else 1500,
            }
        )
    print_rows(rows)


def _row(name: str, pid: int) -> dict[str, object]:
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    resident = sum(process.memory_info().rss for process in family)
    proportional = sum(_proportional(process) for process in family)
    return {
        "process": f"{name} ({len(family)})",
        "resident MB": round(resident / 1e6, 1),
        "proportional MB": round(proportional / 1e6, 1),
        "target MB": "-",
    }


def _proportional(process: psutil.Process) -> int:
    if os.path.exists("/proc/self/smaps_rollup"):
        return int(process.memory_full_info().pss)
    return int(process.memory_info().rss)


if __name__ == "__main__":
    main()
