"""Numbers of a file in the precision of the session: kept exactly, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def as_jax(array: np.ndarray, what: str) -> Array:
    """
    Hand an array to JAX without changing a number in it.

    Returns: In memory of its own. Without 64-bit JAX 64-bit numbers become 32-bit ones, if each of them is one.
    """
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if dtype != array.dtype:
        with np.errstate(over="ignore"):
            narrow = array.astype(dtype)
        changed = ~((narrow.astype(array.dtype) == array) | (array != array))
        if changed.any():
            index = np.unravel_index(int(np.argmax(changed)), changed.shape)
            where = f"[{', '.join(map(str, index))}]" if index else ""
            raise ValueError(
                f"{what}{where} = {array[index]!r} does not fit {dtype}: it was saved with 64-bit JAX; enable it "
                "before loading, with jax.config.update('jax_enable_x64', True)"
            )
        array = narrow
    return jnp.array(array)
