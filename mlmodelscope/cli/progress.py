"""Live progress of an evaluation, on stderr: bars on a terminal, lines elsewhere."""

import sys
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class EvaluationProgress:
    """Shows the events of one evaluation, one bar a task. Use in a `with`; call it with each event."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self.evaluation_id = ""
        """Known once it is accepted."""
        self._names: dict[str, str] = {}
        self._bars: dict[str, Any] = {}
        self._phases: dict[str, str] = {}
        self._live = not quiet and sys.stderr.isatty()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not self._live,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, kind: str, data: dict[str, Any]) -> None:
        """Show one event."""
        task = str(data.get("task_id", ""))
        if kind == "evaluation_accepted":
            for planned in data["tasks"]:
                stack = planned["stack"]
                self._names[planned["task_id"]] = f"{stack['framework']} {stack['version']} {stack['device']}"
            self.evaluation_id = str(data["evaluation_id"])
            self._say(f"evaluation {self.evaluation_id} accepted: {', '.join(self._names.values())}")
        elif kind == "task_progressed":
            self._show(task, data["phase"], data.get("done", 0), data.get("total", 0), data.get("message", ""))
        elif kind == "task_completed":
            self._show(task, "done", 1, 1, "")
        elif kind == "task_failed":
            self._show(task, "failed", 0, 0, data["failure"]["message"])

    def _show(self, task: str, phase: str, done: int, total: int, message: str) -> None:
        name = self._names.get(task, task)
        if not self._live:
            if self._phases.get(task) != phase:  # one line a phase is enough in a log
                self._phases[task] = phase
                self._say(f"{name}: {phase}{f': {message}' if message else ''}")
            return
        if task not in self._bars:
            self._bars[task] = self._progress.add_task(name, total=None)
        text = f"{name}: {phase}{f' ({message})' if message else ''}"
        self._progress.update(self._bars[task], description=text, completed=done, total=total or None)

    def _say(self, line: str) -> None:
        if not self._quiet and not self._live:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
