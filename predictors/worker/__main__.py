"""The worker process: one framework, one open model at a time, no bus.

`python -m predictors.worker --framework NAME --channel FD --parent PID`. Started by an agent, talks over the
descriptor it inherits, and dies with the agent. What a framework does to a process (leaks, crashes, aborts)
it does to this one.
"""

import argparse
import ctypes
import faulthandler
import os
import resource
import select
import signal
import socket
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str] | None = None) -> int:
    """Serve jobs until the agent closes the channel. Returns the exit code."""
    options = _parse(arguments)
    _die_with(options.parent, options.channel)
    faulthandler.enable()
    if options.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (options.memory_bytes, options.memory_bytes))
    # Only now anything heavy: the limits above and the thread variables of the environment must come first.
    from predictors.worker.loop import serve

    os.set_inheritable(options.channel, False)
    with socket.socket(fileno=options.channel) as sock:
        serve(sock, options.framework, options.device, options.asked_ns)
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="predictors.worker", description="Started by an agent, not by hand.")
    parser.add_argument("--framework", required=True)
    parser.add_argument("--channel", type=int, required=True, help="inherited descriptor of a socket pair")
    parser.add_argument("--parent", type=int, required=True, help="the agent's process id")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--memory-bytes", type=int, default=None)
    parser.add_argument("--asked-ns", type=int, default=time.perf_counter_ns(), help="when the agent asked for it")
    return parser.parse_args(arguments)


def _die_with(parent: int, channel: int) -> None:
    """See to it that this process does not outlive the agent, whatever it is doing then.

    The kernel's parent-death signal where there is one; a thread that waits for the hang-up of the channel
    everywhere, which also takes this process's children along. The thread sleeps in the kernel: it costs a
    measurement nothing.
    """
    threading.Thread(target=_await_hang_up, args=(channel,), name="hang-up", daemon=True).start()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # it died before the line above


def _await_hang_up(channel: int) -> None:
    poll = select.poll()
    poll.register(channel, 0)  # no event but the hang-up, which is always told
    poll.poll()
    # The main loop sees the end of the channel too and ends in order, unless it is busy with a task.
    time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
