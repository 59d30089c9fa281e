"""An inference session of ONNX Runtime: its settings, and what became of them."""

import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Protocol

from predictors.contract import Array
from predictors.frameworks.onnx_graph import Node
from predictors.frameworks.options import Value
from schemas.scenario import Threads


class SessionOptions(Protocol):
    """The part of `onnxruntime.SessionOptions` that is used."""

    graph_optimization_level: object
    execution_mode: object
    intra_op_num_threads: int
    inter_op_num_threads: int


class Session(Protocol):
    """The part of `onnxruntime.InferenceSession` that is used."""

    def run(self, output_names: Sequence[str], feed: Mapping[str, Array]) -> list[Array]: ...  # noqa: D102
    def get_inputs(self) -> list[Node]: ...  # noqa: D102
    def get_outputs(self) -> list[Node]: ...  # noqa: D102
    def get_providers(self) -> list[str]: ...  # noqa: D102


def session_options(ort: ModuleType, options: Mapping[str, Value], threads: Threads) -> SessionOptions:
    """Return `onnxruntime.SessionOptions`; a thread count that is not asked for stays the library's default."""
    levels = ort.GraphOptimizationLevel
    modes = ort.ExecutionMode
    settings: SessionOptions = ort.SessionOptions()
    settings.graph_optimization_level = {
        "disable": levels.ORT_DISABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "all": levels.ORT_ENABLE_ALL,
    }[str(options["graph_optimization"])]
    settings.execution_mode = {"sequential": modes.ORT_SEQUENTIAL, "parallel": modes.ORT_PARALLEL}[
        str(options["execution_mode"])
    ]
    settings.intra_op_num_threads = threads.intra_op or 0
    settings.inter_op_num_threads = threads.inter_op or 0
    return settings


def threads_of_process() -> frozenset[str] | None:
    """Return the ids of this process's threads, None where the system does not tell."""
    try:
        return frozenset(os.listdir("/proc/self/task"))
    except OSError:  # not Linux: a default number of threads is then recorded as not known
        return None


def threads_in_force(settings: SessionOptions, before: frozenset[str] | None, *, parallel: bool) -> Threads:
    """Return the thread counts of a session that was just made; `before` is the threads from before.

    What was set reads back as set. A default reads back as 0, so it is told from the threads that the session
    started: a pool of n starts n - 1, since the caller works too. Only the mode `parallel` has a second pool,
    between operators; when both are the default they are equally large.
    """
    intra, inter = settings.intra_op_num_threads or None, settings.inter_op_num_threads or None
    after = threads_of_process()
    started = None if before is None or after is None else len(after - before)
    if not parallel:
        return Threads(intra_op=intra or (None if started is None else started + 1), inter_op=1)
    if started is None or (intra and inter):
        return Threads(intra_op=intra, inter_op=inter)
    if intra is None and inter is None:
        return Threads(intra_op=started // 2 + 1, inter_op=started - started // 2 + 1)
    rest = max(1, started + 2 - (intra or inter or 1))
    return Threads(intra_op=intra or rest, inter_op=inter or rest)
