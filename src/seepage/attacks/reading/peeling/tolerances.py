"""What counts as rounding, as few, as much: the numbers that peeling decides by, in one place.

All tolerances of values follow from three numbers: `ROUNDING`, the relative error of a computed signal,
`EXACT`, the error at which a value still counts as read, and `SURE`, how many root mean squares an error may
be large. Those that are left are budgets of work, or shares that a test shows to lie on a plateau.
"""

from __future__ import annotations

import math

from seepage.models.precision import EXACT
from seepage.models.signals import ROUNDING

SURE = 5.0
"""Root mean squares that an error may be large. Derived: of normal errors, one in 1.7 million is larger, and
a row has some hundred to some thousand values."""
PROOF = math.log(math.erfc(SURE / 2**0.5))
"""Logarithm of a chance that proves. Derived: that of `SURE`, one in 1.7 million."""
BEYOND = 2 * SURE
"""Times its expected rounding from which on a number is no rounding. Derived: `SURE` for each of the two that
are compared."""
READABLE = 2 * BEYOND
"""Times its rounding that a bias residual must be to be divided by. Derived: what is left of it if all that
may be rounding is taken away is still no rounding."""
COARSE = BEYOND * EXACT
"""Relative error beyond which a reading or a direction says nothing. Derived: ten times what still counts as
read; averaging ten equal rows no longer helps."""
FINE = EXACT / BEYOND
"""Relative error that does not matter. Derived: ten of them together are still `EXACT`."""
SUSPECT = BEYOND * ROUNDING
"""Share of a signal by which it must be off before it counts as another one. Derived: see `BEYOND`."""
EITHER_SIDE = SURE * ROUNDING
"""An activation below this share of the norm of its terms may have either sign. Derived: see `SURE`."""
TIGHT = SURE * ROUNDING / 2
"""Mismatch allowed to a reading that nothing but its label speaks for. Tested:
test_constants_of_reading_lie_on_a_plateau."""
BENT = 3e-2
"""Share of a signal that a deeper ReLU near 0 may change. Tested:
test_constants_of_reading_lie_on_a_plateau."""
BENT_CLEAR = 2.0
"""The second-best label of a bent signal must fit worse by this factor. The alphabet proves the example
itself, and where it is alone its signal is taken as observed, so a wrong label does little harm. Tested:
test_constants_of_reading_lie_on_a_plateau."""
FEW = 0.1
"""Share that may be exceptions: of proven examples that the span refutes, of the columns that are not filled,
of readings that are contradicted, of a difference that lies beside the example. Tested:
test_constants_of_reading_lie_on_a_plateau."""
ACCIDENTS = 0.02
"""Expected number of accidental fits above which readings without other evidence are not believed. Tested:
test_constants_of_reading_lie_on_a_plateau."""
SPARE = 4
"""Equations beyond the unknowns. Derived: a mixture fits each of them by accident within `COARSE`, and all
four in one case of 1e8."""
ATTEMPTS = 8
"""Tries of a search that begins at random. Cost: each takes as long as the first; the loop ends at the first
one in vain."""
MOST_ROWS = 1024
"""Rows of a dense system. Cost: its eigenvectors take time with the cube (0.3 s here)."""
BLOCK = 256
"""Rows or columns in double precision at a time. Cost: memory; results do not depend on it."""
BLOCK_BYTES = 1 << 20
"""Of the gradient at a time. Cost: memory; results do not depend on it."""
