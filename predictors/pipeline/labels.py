"""Names of classes, and which classes a data set's label means."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from predictors.errors import PipelineError
from schemas.steps import Argsort, AssetRef

_INDEX: Final = re.compile(r"-?[0-9]+", re.ASCII)


class Labels:
    """The two numberings of the classes: the network's, and the data set's (`first_label_index` lower)."""

    def __init__(self, step: Argsort, fetch: Callable[[AssetRef], Path], class_names: Sequence[str]) -> None:
        """Read the network's labels where the step names some. Raises PipelineError: no such text file."""
        self._shift: Final = step.first_label_index
        self._network: Final = _network_labels(step.labels, fetch)
        self._dataset: Final = tuple(class_names)
        self._by_name: Final[dict[str, frozenset[int]]] = {}
        names = self._dataset or (self._network or ())[max(0, self._shift) :]
        for index, name in enumerate(names, start=0 if self._dataset else max(0, -self._shift)):
            self._by_name[name] = self._by_name.get(name, frozenset()) | {index}

    def check(self, classes: int, output: str) -> None:
        """Raise PipelineError unless the network's labels are as many as its classes."""
        if self._network is not None and len(self._network) != classes:
            raise PipelineError(
                f"output '{output}', step argsort: expected {classes} labels, one a class, found {len(self._network)}"
            )

    def index(self, network_class: int) -> int:
        """Return the class in the data set's numbering; below 0 for one the data set does not have."""
        return network_class - self._shift

    def name(self, network_class: int) -> str:
        """Return the class's name: the network's own, else the data set's, else its number."""
        if self._network is not None:
            return self._network[network_class]
        index = self.index(network_class)
        return self._dataset[index] if 0 <= index < len(self._dataset) else str(index)

    def truth(self, label: str) -> frozenset[int]:
        """Return the classes that are right for a data set's label; none for an item without one.

        An integer is a class in the data set's numbering; other text is a name among the data set's class
        names, or the network's where the data set has none. A name that several classes share is right for
        each of them. Raises PipelineError for a name that no class has: every prediction would be wrong.
        """
        if _INDEX.fullmatch(label):
            index = int(label)
            return frozenset({index}) if index >= 0 else frozenset()
        if not label:
            return frozenset()
        try:
            return self._by_name[label]
        except KeyError:
            raise PipelineError(
                f"label {label!r} of the data set is neither a class index nor the name of a class",
                hint="give the data set's manifest 'labels', or the argsort step 'labels', with that name",
            ) from None


def _network_labels(
    labels: AssetRef | tuple[str, ...] | None, fetch: Callable[[AssetRef], Path]
) -> tuple[str, ...] | None:
    if not isinstance(labels, AssetRef):
        return labels
    path = fetch(labels)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise PipelineError(f"step argsort: labels {labels.url} is no text of one label a line: {error}") from error
    return tuple(line.strip() for line in text.rstrip().split("\n"))
