"""Exact beliefs, undiscounted, fixed levels: one pointer per level walks a linked chain, O(1) a round."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from dpconformal.gaps import cdf_of_many, quantiles_in_gaps
from dpconformal.offline.chain import Chain, link, low_end
from dpconformal.offline.loops import take
from dpconformal.offline.rounds import Walk


def chain_walk(
    prior: Any,
    chain: Chain,
    values: Float[Array, " N"],
    levels: Float[Array, " A"],
) -> Walk:
    """
    Let pointers walk the scores in order of size, as scores arrive.

    A pointer is a row (place, place before it, scores below it) at the first score at which the cdf
    λ P0 + (1 - λ)/n · count reaches the level. When a score arrives the count, and with it the place, moves by
    about one; it walks until it is right, however far that is.

    Returns: Over rows (insertion, prior's share, mass of an atom): the insertion is that of the score that came in
    since the round before.
    """
    size, dtype = values.shape[0], values.dtype
    low, high = (jnp.asarray(end, dtype) for end in prior.support)
    # The low end never reaches a level and the high end always does, so no walk can leave the chain.
    share = jnp.concatenate([cdf_of_many(prior, values), jnp.array([-jnp.inf, jnp.inf, jnp.nan], dtype)])
    values = jnp.concatenate([values, jnp.stack([low, high, high])])

    def arrive(chain: Chain, row: Any, first: Array) -> Chain:
        del first  # to link a score that is linked already changes nothing
        return link(chain, row[0])

    def locate(chain: Chain, row: Any, level: Array, pointer: Int[Array, "3"]) -> Int[Array, "3"]:
        insertion, prior_weight, atom = row
        place, _, below = pointer
        below = jnp.where(insertion.here < place, below + 1, below)

        def cdf(place: Array, count: Array) -> Array:
            return prior_weight * take(share, place) + atom * count.astype(dtype)

        def back(walking: Any) -> Any:
            _, before, below = walking
            return before, take(chain.before, before), below - 1

        def ahead(walking: Any) -> Any:
            place, _, below = walking
            return take(chain.after, place), place, below + 1

        walking = (place, take(chain.before, place), below)
        walking = lax.while_loop(lambda w: cdf(w[1], w[2]) >= level, back, walking)
        walking = lax.while_loop(lambda w: cdf(w[0], w[2] + 1) < level, ahead, walking)  # NaN ends a walk, too
        return jnp.stack(walking)

    def read(found: Int[Array, "T A 3"], rows: Any, levels: Array) -> Array:
        prior_weight, atom = rows[1][:, None], rows[2][:, None]
        place, before, below = found[..., 0], found[..., 1], found[..., 2]
        mass = atom * below.astype(dtype)
        reached = prior_weight * share[place] + mass
        return quantiles_in_gaps(prior, prior_weight, mass, values[before], values[place], reached, levels)

    nothing = jnp.asarray(low_end(size), jnp.int32)
    first = jnp.stack([take(chain.after, nothing), nothing, jnp.zeros((), jnp.int32)])
    return Walk(arrive, locate, None, chain, jnp.broadcast_to(first, (levels.shape[0], 3)), True, read)
