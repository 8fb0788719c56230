"""Gamma and Dirichlet variates, many at a time: JAX draws its own one after the other on a CPU."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def log_gamma(key: Array, alpha: Float[Array, "*k"], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """
    Draw logarithms of gamma variates, by the method of Marsaglia and Tsang (2000).

    All are proposed together until each has been accepted, which takes a few rounds. Below 1 the shape is raised by one
    and the variate multiplied by U^(1/alpha); in logarithms, for it may be too small for a float.

    Returns: In the dtype of alpha; NaN where alpha is not positive and finite.
    """
    dtype, fine = alpha.dtype, (alpha > 0) & jnp.isfinite(alpha)
    known = jnp.where(fine, alpha, 1)
    raised = jnp.where(known < 1, known + 1, known) - 1 / 3
    power = jnp.where(known < 1, 1 / known, 0)
    fine, raised, power = (jnp.broadcast_to(part, shape) for part in (fine, raised, power))
    scale = 1 / (3 * jnp.sqrt(raised))

    def propose(carried: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, value, done = carried
        key, first, second = jax.random.split(key, 3)
        x, u = jax.random.normal(first, shape, dtype), jax.random.uniform(second, shape, dtype)
        root = 1 + scale * x
        cube = jnp.where(root > 0, root * root * root, 1)
        accepted = (root > 0) & (jnp.log(u) < x * x / 2 + raised * (1 - cube + jnp.log(cube)))
        return key, jnp.where(done | ~accepted, value, cube), done | accepted

    key, last = jax.random.split(key)
    start = key, jnp.ones(shape, dtype), ~fine
    _, cube, _ = lax.while_loop(lambda carried: ~jnp.all(carried[2]), propose, start)
    u = jax.random.uniform(last, shape, dtype, minval=jnp.finfo(dtype).tiny)
    return jnp.where(fine, jnp.log(raised) + jnp.log(cube) + jnp.log(u) * power, jnp.nan)


def dirichlet(key: Array, alpha: Float[Array, " K"], draws: int) -> Float[Array, "..."]:
    """Draw from a Dirichlet distribution."""
    return jax.nn.softmax(log_gamma(key, alpha, (draws, *alpha.shape)), axis=-1)
