"""The least of neighbouring values, for many ranges at once."""

from typing import Any

import numpy as np


def least_between(edges: Any, values: Any, a: Any, b: Any) -> Any:
    """
    Least value of a step function on segments [a, b].

    ``a, b``: Ends within the edges, a ≤ b. A step that a segment only touches does not count.
    """
    last = values.size - 1
    first = np.clip(np.searchsorted(edges, a, side="right") - 1, 0, last)
    end = np.maximum(np.clip(np.searchsorted(edges, b, side="left") - 1, 0, last), first)
    # Row j holds the least of 2^j neighbours; any range is two of them.
    rows = [values]
    while 2 ** len(rows) <= values.size:
        half = 2 ** (len(rows) - 1)
        longer = rows[-1].copy()
        longer[:-half] = np.minimum(rows[-1][:-half], rows[-1][half:])
        rows.append(longer)
    table = np.stack(rows)
    power = np.floor(np.log2(end - first + 1)).astype(int)
    return np.minimum(table[power, first], table[power, end - 2**power + 1])
