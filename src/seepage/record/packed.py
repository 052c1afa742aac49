"""Many cells of a run in little memory.

Ten thousand cells say nearly the same in nearly the same words. Packed against one of them a cell takes about
three hundred bytes instead of six thousand, and is made anew whenever it is looked at.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import overload

from seepage.record.cell import Cell

HELD = 256
"""Cells that stay as they are: 1.5 MB of cells without scores. More of them are packed. A choice: a report of
so few is read many times, and nothing is saved by packing them."""
_RAW = -15
"""Of zlib: no header and no checksum around each cell."""


class PackedCells(Sequence[Cell]):
    """Cells in their order. Whoever goes through them holds one at a time."""

    def __init__(self, packed: Sequence[bytes], like: bytes) -> None:
        self._packed, self._like = packed, like

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, number: int) -> Cell: ...
    @overload
    def __getitem__(self, number: slice) -> PackedCells: ...
    def __getitem__(self, number: int | slice) -> Cell | PackedCells:
        if isinstance(number, slice):
            return PackedCells(self._packed[number], self._like)
        return self._unpacked(self._packed[number])

    def __iter__(self) -> Iterator[Cell]:
        return map(self._unpacked, self._packed)

    def where(self, predicate: Callable[[Cell], bool]) -> PackedCells:
        """Those of which it holds, packed as they are."""
        found = [one for one in self._packed if predicate(self._unpacked(one))]
        return PackedCells(found, self._like)

    def _unpacked(self, one: bytes) -> Cell:
        reader = zlib.decompressobj(_RAW, zdict=self._like)
        return Cell.model_validate_json(reader.decompress(one) + reader.flush())


def where(cells: Sequence[Cell], predicate: Callable[[Cell], bool]) -> Sequence[Cell]:
    """Those of which it holds; packed ones stay packed."""
    return cells.where(predicate) if isinstance(cells, PackedCells) else [c for c in cells if predicate(c)]


def pack(cells: Iterable[Cell]) -> Sequence[Cell]:
    """As a tuple where they are few, else packed while they come.

    >>> from seepage.record.refs import AttackRef
    >>> several = [Cell(attack=AttackRef(name="prior"), seed=n, status="done") for n in range(HELD + 1)]
    >>> len(pack(several[1:])), type(pack(several[1:])).__name__, type(pack(several)).__name__
    (256, 'tuple', 'PackedCells')
    >>> list(pack(several)) == several
    True
    """
    coming = iter(cells)
    few = tuple(islice(coming, HELD + 1))
    if len(few) <= HELD:
        return few
    like = _written(few[0])
    return PackedCells([_packed(one, like) for one in chain(few, coming)], like)


def _packed(cell: Cell, like: bytes) -> bytes:
    writer = zlib.compressobj(wbits=_RAW, zdict=like)
    return writer.compress(_written(cell)) + writer.flush()


def _written(cell: Cell) -> bytes:
    return cell.model_dump_json().encode()
