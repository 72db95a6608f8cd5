"""Label values: a bounded number of each. Rule: what comes when all are taken is `other`."""

from __future__ import annotations

from rocketspark.model.text import shown

OTHER = "other"
CHARACTERS_MAX = 128


def label_of(name: str) -> str:
    """Return a name as a label value: bounded, and without what no text in UTF-8 can hold."""
    return shown(name, characters_max=CHARACTERS_MAX)


class BoundedLabels:
    """The first `count_max` names keep their own label; the others share `other`, until one is given back."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._labels: dict[str, str] = {}

    def take(self, name: str) -> str:
        """Return the label of a name, its own if there is one left."""
        if name not in self._labels and len(self._labels) < self._count_max:
            self._labels[name] = label_of(name)
        return self._labels.get(name, OTHER)

    def is_own(self, name: str) -> bool:
        """Tell whether a name has a label of its own."""
        return name in self._labels

    @property
    def is_full(self) -> bool:
        """Tell whether all labels are taken."""
        return len(self._labels) >= self._count_max

    def give_back(self, name: str) -> None:
        """Let another name take a name's label."""
        self._labels.pop(name, None)
