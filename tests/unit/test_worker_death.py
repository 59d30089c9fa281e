"""What a worker's end says about its cause."""

import signal

import pytest

from predictors.errors import WorkerCrashedError, WorkerOutOfMemoryError
from predictors.worker.death import KernelKills, explain_death, kernel_kills, looks_like_no_memory

NOTHING = KernelKills(None, None)


@pytest.mark.parametrize(
    ("code", "output", "kind", "words"),
    [
        (-signal.SIGSEGV, "Fatal Python error: Segmentation fault", WorkerCrashedError, "SIGSEGV"),
        (-signal.SIGKILL, "", WorkerCrashedError, "SIGKILL"),
        (-signal.SIGABRT, "terminate called after throwing 'std::bad_alloc'", WorkerOutOfMemoryError, "SIGABRT"),
        (1, "Traceback ...\nMemoryError", WorkerOutOfMemoryError, "exit code 1"),
        (3, "assertion failed", WorkerCrashedError, "code 3"),
        (-signal.SIGRTMIN, "", WorkerCrashedError, "SIGRTMIN"),
        (-40, "", WorkerCrashedError, "signal 40"),
    ],
)
def test_an_end_is_told_by_its_signal_or_its_code(code: int, output: str, kind: type[Exception], words: str) -> None:
    """The signal or exit code is in the message, the last words are the evidence."""
    error = explain_death(code, output, NOTHING)
    assert type(error) is kind
    assert words in error.message
    assert error.detail == output
    assert error.hint


def test_a_kill_while_the_kernel_counts_one_is_for_memory() -> None:
    """SIGKILL together with a rising counter of out-of-memory kills is told as that."""
    now = kernel_kills()
    before = KernelKills(None, now.machine - 1) if now.machine is not None else NOTHING
    if before is not NOTHING:
        assert type(explain_death(-signal.SIGKILL, "", before)) is WorkerOutOfMemoryError
        assert type(explain_death(-signal.SIGSEGV, "", before)) is WorkerCrashedError
    assert KernelKills(2, 5).since(KernelKills(1, 5))
    assert KernelKills(1, 6).since(KernelKills(None, 5))
    assert not KernelKills(1, 5).since(KernelKills(1, 5))
    assert not KernelKills(3, 5).since(NOTHING)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes", True),
        ("CUDA out of memory. Tried to allocate 2 GiB", True),
        ("libtorch_cpu.so: failed to map segment from shared object", True),
        ("Protobuf parsing failed", False),
    ],
)
def test_frameworks_words_for_no_memory(text: str, expected: bool) -> None:
    """The words by which frameworks say that an allocation failed are known."""
    assert looks_like_no_memory(text) is expected
