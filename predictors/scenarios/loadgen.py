"""MLPerf's load generator: its settings, a run, and its verdict.

StartTest needs about 1 ms until its first query; and, as its log thread polls three times at a fixed period,
30 ms after the last one until it returns. It keeps its state in globals, so one run waits for another.
"""

import re
import shutil
import tempfile
import threading
from importlib.metadata import version
from pathlib import Path

import mlperf_loadgen as lg

from predictors.scenarios.log_thread import LogThread
from predictors.scenarios.measured import Verdict
from predictors.scenarios.plan import LoadPlan
from predictors.scenarios.recorder import Recorder
from schemas.scenario import Scenario, Seeds

VERSION = f"mlcommons-loadgen {version('mlcommons-loadgen')}"

RUNNING = threading.Lock()
"""Held from before a run until StartTest has returned."""

_SEED_MASK = 2**64 - 1
_SCENARIOS = {"single_stream": lg.TestScenario.SingleStream, "offline": lg.TestScenario.Offline}
_EARLY_STOPPING = re.compile(r"Early stopping 90\.0th percentile estimate: (\d+)")


def drive(recorder: Recorder, plan: LoadPlan, scenario: Scenario, seeds: Seeds, log_dir: Path) -> Verdict:
    """Run the plan to its end, on this thread, and return the load generator's verdict. Wants RUNNING held.

    `recorder.done` is set when the last query has been recorded, 30 ms before this returns. Logs go to a
    directory in `log_dir` that is gone afterwards. Raises OSError when that cannot be made.
    """
    logs = Path(tempfile.mkdtemp(prefix="loadgen-", dir=log_dir))
    samples = len(plan.drawn)
    sut = lg.ConstructFastSUT(recorder.callback(plan.drawn, lg), recorder.done.set)
    log_thread = LogThread()

    def load(_samples: list[int]) -> None:
        """Every batch was prepared beforehand: there is nothing to load, but the first query is near."""
        log_thread.yield_to_predictions()
        recorder.log_thread = log_thread.policy

    library = lg.ConstructQSL(samples, samples, load, _nothing)
    try:
        lg.StartTestWithLogSettings(sut, library, _settings(plan, scenario, seeds), _log_settings(logs), "")
        return read_verdict((logs / "mlperf_log_summary.txt").read_text(), drained=recorder.drained)
    finally:
        lg.DestroyQSL(library)
        lg.DestroyFastSUT(sut)
        shutil.rmtree(logs, ignore_errors=True)  # a file left in a temporary directory fails no measurement


def read_verdict(summary: str, *, drained: int = 0) -> Verdict:
    """Return what the text of `mlperf_log_summary.txt` says; `drained` queries of it were not predictions."""
    values = {}
    for line in summary.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip():
            values[name.strip(" *")] = value.strip()
    estimate = _EARLY_STOPPING.search(summary)
    return Verdict(
        valid=values.get("Result is") == "VALID",
        values=values,
        early_stopping_ns=int(estimate.group(1)) if estimate else None,
        text=summary,
        comparable=drained == 0,
    )


def _settings(plan: LoadPlan, scenario: Scenario, seeds: Seeds) -> lg.TestSettings:
    settings = lg.TestSettings()
    settings.scenario = _SCENARIOS[scenario.name]
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_query_count = plan.count
    # Offline is one query: how long it is to last has already been made into how many samples it has.
    settings.min_duration_ms = plan.min_duration_ms if scenario.name == "single_stream" else 0
    settings.max_duration_ms = plan.max_duration_ms
    settings.single_stream_expected_latency_ns = plan.expected_ns
    settings.offline_expected_qps = 1.0
    # The generator's seeds are unsigned; a negative one of ours is taken modulo 2^64.
    settings.qsl_rng_seed = settings.sample_index_rng_seed = seeds.order & _SEED_MASK
    settings.schedule_rng_seed = seeds.schedule & _SEED_MASK
    return settings


def _log_settings(directory: Path) -> lg.LogSettings:
    output = lg.LogOutputSettings()
    output.outdir = str(directory)
    output.copy_summary_to_stdout = False
    settings = lg.LogSettings()
    settings.log_output = output
    settings.enable_trace = False
    return settings


def _nothing(_samples: list[int]) -> None:
    """Do nothing: prepared batches are kept."""
