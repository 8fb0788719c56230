"""Long tables of series of unequal lengths, in memory and as Parquet."""

import numpy as np
import pandas as pd

COLUMNS = {"id": "store", "time": "day", "score": "residual"}


def table(series=23, longest=12, seed=0, day_by_day=True):
    """Make a long table of series of unequal lengths."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, series)
    lengths[0] = longest
    number = np.repeat(np.arange(series), lengths)
    day = np.concatenate([np.arange(n) for n in lengths])
    frame = pd.DataFrame(
        {
            "store": [f"s{k:02d}" for k in number],
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(day, "D"),
            "residual": rng.random(len(day)),
        }
    )
    return frame.sort_values(["day", "store"], ignore_index=True) if day_by_day else frame


def parquet(frame, folder, files=3):
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[rows].to_parquet(folder / f"{number:03d}.parquet", index=False)
    return folder
