"""
Numbers and text as a page holds them: small, and safe inside HTML.

A table of numbers is base64 of unsigned 16-bit codes, lowest byte first, row after row. A code c up to 65532 stands for
low + c · (high - low)/65532, with the ends of the row given beside it: half a step is 1/131064 of what a row spans. The
last three codes are 65533 for -∞, 65534 for +∞ and 65535 for no number. Counts are base64 of the smallest unsigned
integers, of 1, 2 or 4 bytes, that hold them.
"""

import base64
import html
import json
import math
from typing import Any

import numpy as np

LAST = 65532
MINUS_INFINITY, INFINITY, NOTHING = 65533, 65534, 65535


def packed_rows(rows: np.ndarray) -> dict[str, Any]:
    """
    Encode the rows of a table, each over its own range.

    Returns: ``low`` and ``high``, the ends of each row; ``codes``, see the module.
    """
    rows = np.asarray(rows, float)
    finite = np.isfinite(rows)
    # A row without any finite number spans nothing. Ends are divided before they are subtracted, which cannot overflow.
    low = np.where(finite.any(axis=1), np.min(rows, axis=1, initial=np.inf, where=finite), 0.0)
    high = np.where(finite.any(axis=1), np.max(rows, axis=1, initial=-np.inf, where=finite), 0.0)
    step = (high / LAST - low / LAST)[:, None]
    known = np.where(finite, rows, low[:, None])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = np.where(step > 0, np.rint((known - low[:, None]) / step), 0)
    codes = np.clip(np.nan_to_num(codes), 0, LAST).astype("<u2")
    codes[rows == -np.inf], codes[rows == np.inf], codes[np.isnan(rows)] = MINUS_INFINITY, INFINITY, NOTHING
    return {"low": low.tolist(), "high": high.tolist(), "codes": _base64(codes)}


def unpacked_rows(packed: dict[str, Any]) -> np.ndarray:
    """Decode what :func:`packed_rows` made, as the page does."""
    low, high = (np.array(packed[end])[:, None] for end in ("low", "high"))
    codes = np.frombuffer(base64.b64decode(packed["codes"]), "<u2").reshape(low.size, -1)
    rows = low + codes * (high / LAST - low / LAST)
    for code, value in ((MINUS_INFINITY, -np.inf), (INFINITY, np.inf), (NOTHING, np.nan)):
        rows = np.where(codes == code, value, rows)
    return rows


def packed_counts(counts: np.ndarray, most: int) -> dict[str, Any]:
    """Encode counts in as few bytes as they need."""
    size = 1 if most < 2**8 else 2 if most < 2**16 else 4
    return {"bytes": size, "codes": _base64(np.asarray(counts).astype(f"<u{size}"))}


def unpacked_counts(packed: dict[str, Any]) -> np.ndarray:
    """Decode what :func:`packed_counts` made."""
    return np.frombuffer(base64.b64decode(packed["codes"]), f"<u{packed['bytes']}").astype(int)


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def plain(value: Any) -> Any:
    """Turn arrays and numbers into what JSON has words for: infinite ones become ``"inf"`` and ``"-inf"``, NaN null."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(part) for part in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        number = float(value)
        if math.isnan(number):
            return None
        return float(f"{number:.7g}") if math.isfinite(number) else ("inf" if number > 0 else "-inf")
    return value


def as_json(value: Any) -> str:
    r"""Write JSON that no HTML parser mistakes for an end of the script that holds it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def as_html(text: str) -> str:
    """
    Write text into HTML, between tags or quotes.

    Returns: Escaped. A lone surrogate, which no file can hold, becomes a question mark.
    """
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"), quote=True)
