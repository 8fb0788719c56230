"""
Naive oracles in NumPy and SciPy, written from the paper's formulas and nothing else.

Slow on purpose: each round looks at every past score again, and quantiles are found by plain bisection
of the belief's cdf. They share no code and no algorithm with the package.
"""

import itertools

import numpy as np
from scipy import stats


def scipy_prior(kind, *parameters):
    """A frozen SciPy distribution: the independent twin of one of our priors."""
    if kind == "uniform":
        low, high = parameters
        return stats.uniform(low, high - low)
    if kind == "beta":
        a, b, low, high = parameters
        return stats.beta(a, b, low, high - low)
    if kind == "truncated_normal":
        loc, scale, low, high = parameters
        return stats.truncnorm((low - loc) / scale, (high - loc) / scale, loc, scale)
    if kind == "histogram":
        edges, masses = parameters
        return stats.rv_histogram((np.asarray(masses, float), np.asarray(edges, float)), density=False)
    raise AssertionError(kind)


def bisect(cdf, levels, low, high):
    """min{x in [low, high] : cdf(x) >= level} for an array of levels, where level 0 is met at the lower end."""
    left, right = np.full(levels.shape, low), np.full(levels.shape, high)
    for _ in range(90):
        middle = left + (right - left) / 2
        reached = cdf(middle) >= levels
        left, right = np.where(reached, left, middle), np.where(reached, middle, right)
    at_once = (levels <= 0) | (cdf(np.full(levels.shape, low)) >= levels)
    return np.where(at_once, low, right)


def shares_of_past(rounds, weight, discount=None):
    """Row t: the prior's share of P_t and that of each earlier score, term by term. `weight(t)` is λ_t."""
    prior, past = np.ones(rounds), np.zeros((rounds, rounds))
    for t in range(2, rounds + 1):
        n, lam = t - 1, weight(t)
        if discount is None:
            prior[t - 1] = lam
            past[t - 1, :n] = (1 - lam) / n
        else:
            prior[t - 1] = lam + (1 - lam) * discount**n
            past[t - 1, :n] = (1 - lam) * (1 - discount) * discount ** np.arange(n - 1, -1, -1.0)
    return prior, past


def belief_cdf(x, prior_cdf, scores, shares):
    """P_t(X <= x[t, a]) for every round t and column a."""
    prior, past = shares
    return prior[:, None] * prior_cdf(x) + np.einsum("ti,tai->ta", past, scores <= x[:, :, None])


def to_bin_centre(scores, bins, low, high):
    """Each score at the centre of its bin; an edge goes up, the top end to the last bin."""
    edges = np.array([low + k * (high - low) / bins for k in range(bins + 1)])
    index = np.searchsorted(edges, scores, side="right") - 1
    index = np.minimum(index, bins - 1)
    return low + (index + 0.5) * (high - low) / bins


def belief_thresholds(scores, levels, prior, support, weight, discount=None, bins=None):
    """Thresholds of the exact (or, with bins, quantized) belief, (T, A)."""
    low, high = support
    scores = np.asarray(scores, float)
    kept = scores if bins is None else to_bin_centre(scores, bins, low, high)
    shares = shares_of_past(scores.size, weight, discount)
    wanted = np.tile(np.asarray(levels, float), (scores.size, 1))
    found = bisect(lambda x: belief_cdf(x, prior.cdf, kept, shares), wanted, low, high)
    # The prior's density is positive up to `high`, also where its cdf has long been rounded to 1.
    return np.where(wanted >= 1, high, found)


def erm_thresholds(scores, levels, prior, support):
    """Smallest past score that a share `level` of the past does not exceed; the prior's answer at first."""
    out = np.empty((len(scores), len(levels)))
    for t in range(len(scores)):
        past = np.sort(scores[:t])
        for a, level in enumerate(levels):
            if level == 0:
                out[t, a] = support[0]
            elif t == 0:
                out[t, a] = prior.ppf(level)
            else:
                out[t, a] = next(x for k, x in enumerate(past, 1) if k / t >= level)
    return out


def split_thresholds(scores, levels, low=0.0):
    """The smallest order statistic whose rank over n + 1 reaches the level; +inf if none does."""
    out = np.empty((len(scores), len(levels)))
    for t in range(len(scores)):
        past = np.sort(scores[:t])
        for a, level in enumerate(levels):
            reaching = [x for k, x in enumerate(past, 1) if k / (t + 1) >= level]
            out[t, a] = low if level == 0 else (reaching[0] if reaching else np.inf)
    return out


def quantile_loss(threshold, score, level):
    return ((threshold >= score) - level) * (threshold - score)


def best_total_loss(scores, levels, weights=None):
    """Least weighted loss of one threshold: tried at every score, for the optimum is at one."""
    weights = np.ones(len(scores)) if weights is None else weights
    return min(sum(w * quantile_loss(r, s, a) for w, s, a in zip(weights, scores, levels, strict=True)) for r in scores)


def crps(cdf, low, high, score, points):
    """∫ (F(x) - 1[score <= x])² dx, piecewise between the points where F jumps, by Gauss-Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    ends = np.unique(np.concatenate([[low, high, score], points]))
    total = 0.0
    for a, b in itertools.pairwise(ends):
        x = a + (b - a) * (nodes + 1) / 2
        total += np.sum(weights * (np.array([cdf(v) for v in x]) - (score <= x)) ** 2) * (b - a) / 2
    return total
