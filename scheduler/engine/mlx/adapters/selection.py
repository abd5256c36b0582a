"""Which adapter each row of a model call has, as its layers need it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Selection:
    """The adapters of a call's rows. `slots`: (rows,), the place of each row's adapter in the layers' stacks,
    0 for none. `scales`: (rows, 1, 1). `slot_scales`: (slots,)."""

    slots: mx.array
    scales: mx.array
    slot_scales: mx.array
    _own: dict[int, mx.array] = field(default_factory=dict)

    def own_ranks(self, rank: int) -> mx.array:
        """Return which parts of a product with all slots, each of this rank, are a row's own: (rows, 1, slots
        x rank)."""
        if rank not in self._own:
            slots = mx.arange(self.slot_scales.shape[0] * rank) // rank
            self._own[rank] = slots[None, None] == self.slots[:, None, None]
        return self._own[rank]

    @classmethod
    def of(cls, slots: Sequence[int], slot_scales: mx.array) -> Selection:
        places = mx.array(list(slots), dtype=mx.uint32)
        return cls(places, slot_scales[places][:, None, None], slot_scales)

    @property
    def rows(self) -> int:
        return self.slots.shape[0]


@dataclass(slots=True)
class Current:
    """The model call whose graph is being built; one for each model. Without `selection`, no row of it has an
    adapter."""

    selection: Selection | None = None
    sorted_slots: mx.array | None = None
    """The slot of each input, within a layer of experts that has sorted them by expert."""
    called: set[str] = field(default_factory=set)
    """Names of the layers that have applied a selection."""

    @contextmanager
    def over(self, selection: Selection | None) -> Iterator[None]:
        self.selection = selection
        try:
            yield
        finally:
            self.selection = None

    @contextmanager
    def sorted_by_expert(self, indices: mx.array) -> Iterator[None]:
        """Within this block, a layer of experts may read `sorted_slots`. `indices`: (rows, ..., experts of a
        token), as the layer gets them; it sorts them by the same operation as here."""
        if self.selection is not None:
            order = mx.argsort(indices.flatten())
            self.sorted_slots = self.selection.slots[order // (indices.size // self.selection.rows)]
        try:
            yield
        finally:
            self.sorted_slots = None
