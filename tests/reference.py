"""
Naive oracles in NumPy and SciPy, written from the paper's formulas and nothing else.

Slow on purpose: each round looks at every past score again, and quantiles are found by plain bisection
of the belief's cdf. They share no code and no algorithm with the package.
"""

import functools
import inspect
import itertools
import math

import numpy as np
from scipy import integrate, special, stats


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


def to_bin(scores, bins, low, high, rounding="up"):
    """Each score where it counts: the upper edge of its right-closed bin, or the centre of its left-closed one."""
    edges = np.array([low + k * (high - low) / bins for k in range(bins)] + [high])
    if rounding == "up":
        return np.array([next(edge for edge in edges[1:] if score <= edge) for score in np.ravel(scores)])
    index = np.minimum(np.searchsorted(edges, scores, side="right") - 1, bins - 1)
    return low + (index + 0.5) * (high - low) / bins


def belief_thresholds(scores, levels, prior, support, weight, discount=None, bins=None, rounding="up"):
    """Thresholds of the exact (or, with bins, quantized) belief, (T, A)."""
    low, high = support
    scores = np.asarray(scores, float)
    kept = scores if bins is None else to_bin(scores, bins, low, high, rounding)
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


# Baselines, one level at a time: each returns the thresholds of its rounds, from the papers' formulas.


def nearest_level(levels, query):
    return min(range(len(levels)), key=lambda i: abs(levels[i] - query))


def sliding_erm_thresholds(scores, levels, window, prior):
    """ERM on the latest scores alone."""
    out = np.empty((len(scores), len(levels)))
    for t in range(len(scores)):
        past = np.sort(scores[max(0, t - window) : t])
        for a, level in enumerate(levels):
            if level == 0:
                out[t, a] = prior.support()[0]
            elif t == 0:
                out[t, a] = prior.ppf(level)
            else:
                out[t, a] = next(x for k, x in enumerate(past, 1) if k / len(past) >= level)
    return out


def weighted_thresholds(scores, levels, discount, at_infinity, low=0.0):
    """Weighted quantile of the past; `at_infinity` is the weight of +inf. The least part of the mass is rounding."""
    least = np.finfo(float).eps * (64 + 16 / np.sqrt(1 - discount))
    out = np.empty((len(scores), len(levels)))
    for t in range(len(scores)):
        # A score of k rounds ago weighs discount^k: the last one discount, where the coming one weighs 1.
        weights = discount ** np.arange(t - 1, -1, -1.0) * (discount if at_infinity else 1)
        order = np.argsort(scores[:t], kind="stable")
        values, mass = scores[:t][order], np.cumsum(weights[order]) / (weights.sum() + at_infinity or 1)
        for a, level in enumerate(levels):
            reaching = values[mass >= level - least]
            out[t, a] = low if level == 0 else (reaching[0] if reaching.size else np.inf)
    return out


def ogd_thresholds(scores, level, step, initial):
    r, out = initial, []
    for t, s in enumerate(scores, 1):
        out.append(r)
        r -= step(t) * ((1 - level) if s <= r else -level)
    return np.array(out)


def sfogd_thresholds(scores, level, rate, initial):
    r, squares, out = initial, 0.0, []
    for s in scores:
        out.append(r)
        gradient = (1 - level) if s <= r else -level
        squares += gradient**2
        if squares:
            r -= rate * gradient / np.sqrt(squares)
    return np.array(out)


def window_quantile(window, q, convention):
    """np.quantile, with an index that is whole but for rounding taken as whole."""
    values, n = np.sort(window), len(window)
    index = n * q - 1 if convention == "inverted_cdf" else (n - 1) * q
    if abs(index - round(index)) < 1e-9:
        index = round(index)
    below, above = (min(max(int(f(index)), 0), n - 1) for f in (np.floor, np.ceil))
    if convention != "linear":
        return values[above]
    part = min(max(index - below, 0), 1)
    return values[below] * (1 - part) + values[above] * part if values[below] < values[above] else values[below]


def window_answer(window, q, convention, outside, low=0.0, high=1.0):
    """Outside [0, 1] a level asks for an end of the support, for infinity, or for the extremes of the window."""
    if q > 1 + 1e-9:
        return {"ends": high, "infinite": np.inf, "extremes": max(window)}[outside]
    if q < -1e-9:
        return {"ends": low, "infinite": -np.inf, "extremes": min(window)}[outside]
    return window_quantile(window, min(max(q, 0), 1), convention)


def aci_thresholds(scores, level, rate, window, warmup=10, convention="linear", outside="ends"):
    """α_{t+1} = α_t + rate · (α - err_t), the threshold being the (1 - α_t)-quantile of the window."""
    alpha, out = 1 - level, []
    current = alpha
    for t, s in enumerate(scores):
        if t < warmup:
            out.append(level)
            continue
        out.append(window_answer(scores[max(0, t - window) : t], 1 - current, convention, outside))
        current += rate * (alpha - (s > out[-1]))
    return np.array(out)


def dtaci_thresholds(scores, level, rates, window, horizon, warmup=10):
    alpha, k = 1 - level, len(rates)
    sigma = 1 / (2 * horizon)
    eta = np.sqrt(3 / horizon * (np.log(k * horizon) + 2) / ((1 - alpha) ** 2 * alpha**3 + alpha**2 * (1 - alpha) ** 3))
    experts, weights, out = np.full(k, alpha), np.full(k, 1 / k), []
    for t, s in enumerate(scores):
        if t < warmup:
            out.append(level)
            continue
        past = scores[max(0, t - window) : t]
        out.append(window_answer(past, 1 - weights @ experts / weights.sum(), "inverted_cdf", "ends"))
        beta = np.mean(past >= s)
        loss = alpha * (beta - experts) - np.minimum(0, beta - experts)
        moved = weights * np.exp(-eta * loss)
        weights = (1 - sigma) * moved + sigma * moved.sum() / k
        weights /= weights.sum()
        missed = np.array([s > window_answer(past, 1 - expert, "inverted_cdf", "ends") for expert in experts])
        experts = experts + np.array(rates) * (alpha - missed)
    return np.array(out)


def agaci_thresholds(scores, level, rates, window, warmup=10, convention="linear"):
    """Bernstein online aggregation, with linearised losses, of the thresholds of several ACI."""
    alpha, k = 1 - level, len(rates)
    currents = np.full(k, alpha)
    regret, largest, squares, out = np.zeros(k), np.zeros(k), np.zeros(k), []
    for t, s in enumerate(scores):
        if t < warmup:
            out.append(level)
            continue
        past = scores[max(0, t - window) : t]
        experts = np.array([window_answer(past, 1 - c, convention, "ends") for c in currents])
        exponent = np.array(
            [r * boa_rate(b, v, k) if v else 0 for r, b, v in zip(regret, largest, squares, strict=True)]
        )
        weights = np.exp(exponent - exponent.max())
        out.append(weights @ experts / weights.sum())
        gradient = (1 - level) if s <= out[-1] else -level
        gain = gradient * (out[-1] - experts)
        for i in range(k):
            largest[i] = max(largest[i], abs(gain[i]))
            squares[i] += gain[i] ** 2
            regret[i] += gain[i] - (boa_rate(largest[i], squares[i], k) * gain[i] ** 2 if squares[i] else 0)
        currents = currents + np.array(rates) * (alpha - (s > experts))
    return np.array(out)


def boa_rate(largest, squares, k):
    return min(1 / (2 * largest), np.sqrt(np.log(k) / squares))


def pid_thresholds(scores, level, rate, integral, saturation, initial=0.0, window=None, scorecasts=None, ends=(0, 1)):
    """
    Angelopoulos, Candès and Tibshirani (2023) as their code has it, with scores and rounds in lists.

    The step of round t is a share of the spread of the `window` scores before it, and the integrator of round t + 1
    looks at the errors of rounds 1 to t - 1. Where the code has no spread yet (rounds 1 and 2), no step is made.
    """
    alpha, tracker, missed, out = 1 - level, initial, [], []
    for t, s in enumerate(scores):  # t rounds are over
        before = scores[max(0, t - (window or 0)) : t]
        spread = 1.0 if window is None else (max(before) - min(before) if len(before) else 0.0)
        gain = spread if integral is None else integral
        errors = sum(missed[:-1]) - alpha * len(missed[:-1])
        angle = errors * np.log(max(t, 1)) / (max(t, 1) * saturation)
        if integral != 0 and abs(angle) >= np.pi / 2:
            out.append(ends[1] if angle > 0 else ends[0])
        else:
            out.append(tracker + gain * np.tan(angle) + (0 if scorecasts is None else scorecasts[t]))
        missed.append(int(s > out[-1]))
        tracker += rate * spread * (missed[-1] - alpha)
    return np.array(out)


def saocp_thresholds(scores, level, initial, lifetime=8, played=None):
    """
    Experts are kept in a list, born every round and dropped when their time is over.

    The shares are quotients of small differences, so rounding errors grow from round to round, exponentially where the
    scores are hostile. With `played`, each round starts from the thresholds that were played before it, and errors of
    one round stay in that round.
    """
    # A row an expert: round of birth, round of death, iterate, squared gradients, gains, bets.
    experts, out, last = np.empty((0, 6)), [], initial
    for t, s in enumerate(scores, 1):
        power = max(2**n for n in range(20) if t % 2**n == 0)
        experts = np.vstack([experts[experts[:, 1] > t], [t, t + lifetime * power, last, 0, 0, 0]])
        born, _, r, squares, gains, bets = experts.T
        prior = 1 / (born**2 * (1 + np.floor(np.log2(born))))
        prior /= prior.sum()
        wealth = gains / np.maximum(t - born, 1) * (1 + bets)
        shares = prior * np.maximum(wealth, 0)
        shares = shares / shares.sum() if shares.sum() > 0 else prior
        out.append(last + shares @ (r - last))  # a mean of equal iterates is exact, for scores may be tied with it
        last = out[-1] if played is None else played[t - 1]
        gain = quantile_loss(last, s, level) - quantile_loss(r, s, level)
        gain = np.clip(gain, np.where(wealth > 0, -1, 0), 1)
        gains += gain
        bets += wealth * gain
        gains[np.abs(gains) < 1e-13] = 0  # a gain that is all rounding must not decide
        gradient = (s <= r) - level
        squares += gradient**2
        r -= gradient / np.sqrt(3 * np.where(squares > 0, squares, 1))
    return np.array(out)


def mvp_thresholds(scores, level, buckets, rate, normalize, uniforms, groups=None, resolution=1000):
    """Sums of exponentials as the paper writes them; `uniforms[t]` is the coin of round t."""
    groups = np.ones((len(scores), 1), bool) if groups is None else groups
    covered_less_target, counts = np.zeros((buckets, groups.shape[1])), np.zeros((buckets, groups.shape[1]))
    out = []
    for s, coin, mine in zip(scores, uniforms, groups, strict=True):
        if not mine.any():
            out.append(0.0)
            continue
        n, v = counts[:, mine], np.round(covered_less_target[:, mine], 9)
        f = np.sqrt((n + 1) * np.log2(n + 2) ** 2) if normalize else 1
        over, under = (np.sum(np.exp(sign * rate * v / f) / f, axis=1) for sign in (1, -1))
        c = np.where(np.abs(over - under) > 1e-13 * over, over - under, 0)  # groups may cancel but for rounding
        turn = next((i for i in range(1, buckets) if c[i - 1] * c[i] <= 0), None)
        if turn is None:
            bucket, threshold = (0, 0.0) if c[0] > 0 else (buckets - 1, 1.0)
        else:
            total = abs(c[turn - 1]) + abs(c[turn])
            if coin <= (abs(c[turn]) / total if total else 1):
                bucket, threshold = turn - 1, turn / buckets - 1 / (resolution * buckets)
            else:
                bucket, threshold = turn, turn / buckets
        out.append(threshold)
        covered_less_target[bucket, mine] += (s <= threshold) - level
        counts[bucket, mine] += 1
    return np.array(out)


def regularizer(r, level, twin, low, high, breaks=()):
    """E[l_α(r, X)]: the loss times the density, integrated piece by piece."""
    points = np.unique(np.clip([low, r, high, *breaks], low, high))
    pieces = itertools.pairwise(points)
    return sum(integrate.quad(lambda x: quantile_loss(r, x, level) * twin.pdf(x), *piece)[0] for piece in pieces)


def path_bound(scores, noted, thresholds, level, weight, discount, psi, density, past=(), pull=lambda r: 0.0):
    """
    The regret bound of docs/theory.md, term by term, at the end of one sequence and level.

    `weight(t)` is the regulariser's weight in the objective of round t whose losses carry discount^-i: h_t, or z_t;
    `pull` is a part of the regulariser that has the same weight in every round.
    """
    beta, first = (1.0 if discount is None else discount), len(past) + 1
    times = np.arange(first, first + len(scores))
    last = times[-1]
    scale = beta ** -times.astype(float)
    values, order = np.sort(scores), np.argsort(scores)
    passed = np.cumsum(scale[order])
    u = values[min(np.sum(passed < level * passed[-1] * (1 - 1e-13)), len(values) - 1)]
    excess = [psi(x) for x in (u, *thresholds)]
    old = sum(
        beta**-i * (quantile_loss(u, s, level) - quantile_loss(thresholds[0], s, level))
        for i, s in enumerate(past, start=1)
    )
    total = weight(last) * excess[0] + old - weight(first) * excess[1] + pull(u) - pull(thresholds[0])
    for k, t in enumerate(times):
        r, s = thresholds[k], noted[k]
        slope = (1 - level) if r > s else level
        least = np.min(density(np.linspace(min(r, s), max(r, s), 2001)))
        smooth = (scale[k] * slope) ** 2 / (2 * weight(t) * least) if least > 0 else np.inf
        total += min(scale[k] * quantile_loss(r, s, level), smooth) if r != s else 0.0
        if t < last:
            total += max(weight(t) - weight(t + 1), 0) * excess[k + 2]
        total += scale[k] * (quantile_loss(r, scores[k], level) - quantile_loss(r, s, level))
        # What noting the score as another may have raised the comparator's loss by, wherever that was.
        far = np.array([-1e3, 1e3])
        total += scale[k] * np.max(quantile_loss(far, s, level) - quantile_loss(far, scores[k], level))
    return total * beta ** float(last)


def count_distribution(chances):
    """P(k of the independent events happen), one event after the other."""
    distribution = np.ones(1)
    for chance in chances:
        distribution = np.convolve(distribution, [1 - chance, chance])
    return distribution


def dp_mean(x, prior_cdf, a, scores):
    """Mean of F(x) under a Dirichlet-process posterior, by counting."""
    seen = (np.asarray(scores)[:, None] <= np.ravel(x)).sum(axis=0).reshape(np.shape(x))
    return (a * prior_cdf(x) + seen) / (a + len(scores))


def dp_quantile_cdf(level, x, prior_cdf, a, scores):
    """P(q_level <= x) under the posterior: P(Beta >= level), from SciPy's Beta distribution."""
    mean, total = dp_mean(x, prior_cdf, a, scores), a + len(scores)
    with np.errstate(all="ignore"):
        inner = stats.beta.sf(level, total * mean, total * (1 - mean))
    certain = np.where(mean <= 0, np.where(level <= 0, 1.0, 0.0), 1.0)
    return np.where((mean <= 0) | (mean >= 1) | (level <= 0), certain, inner)


def credible_threshold(levels, confidence, prior_cdf, a, scores, low, high):
    """Smallest x in [low, high] with P(F(x) >= level) >= confidence, for each level, by bisection in x."""
    wanted = np.where(levels > 0, confidence, 0.0)
    return bisect(lambda x: dp_quantile_cdf(levels, x, prior_cdf, a, scores), wanted, low, high)


def label_score(kind, p, y, u=1.0, penalty=0.0, free=1, weight=0.2):
    """The score of one class label, from its definition: classes in order of probability, then of number."""
    order = sorted(range(len(p)), key=lambda k: (-p[k], k))
    rank = order.index(y) + 1
    if kind == "lac":
        return 1 - p[y]
    if kind == "margin":
        return max(p[k] for k in range(len(p)) if k != y) - p[y]
    if kind == "top_k":
        return rank
    if kind == "saps":
        return u * max(p) if rank == 1 else max(p) + (rank - 2 + u) * weight
    before = sum(p[k] for k in order[: rank - 1])
    return min(before + u * p[y], 1.0) + penalty * max(rank - free, 0)


def rank_transform(reference, s):
    """Place of a score among reference scores, with tails s/(1 + s) beyond their ends."""
    v = sorted(reference)
    n = len(v)
    reach = (v[-1] - v[0]) / n if v[-1] > v[0] else max(abs(v[0]), 1)
    places = [sum(w <= x for w in v) / (n + 1) for x in v]
    if s < v[0]:
        return places[0] * reach / (reach + v[0] - s)
    if s > v[-1]:
        return places[-1] + (1 - places[-1]) * (s - v[-1]) / (reach + s - v[-1])
    if s in v:
        return places[v.index(s)]
    left = max(i for i in range(n) if v[i] < s)
    share = (s - v[left]) / (v[left + 1] - v[left])
    return places[left] + share * (places[left + 1] - places[left])


def masked_loop(learner, scores, levels, mask, context=None):
    """Thresholds and final state of one sequence by a plain loop that skips: answer every round, observe some."""
    state = (
        learner.init(rounds=len(scores)) if "rounds" in inspect.signature(learner.init).parameters else learner.init()
    )
    rows = np.broadcast_to(levels, (len(scores), np.shape(levels)[-1]))
    found = []
    for t, score in enumerate(scores):
        given = {} if context is None else {"context": context[t]}
        found.append(np.asarray(learner.quantile(state, rows[t], **given)))
        if not mask[t]:
            state = learner.observe(state, float(score), **given)
    return np.array(found).reshape(rows.shape), state


# Several beliefs at once, and groups.


def aggregate_thresholds(scores, levels, tables, thresholds, low, high, share=0.0):
    """
    The aggregating algorithm for the CRPS, cell by cell. ``tables[t]`` (N, P) are the beliefs' cdfs in the middles of
    P cells, ``thresholds[t]`` (N, A) their own, both before score t.
    """
    n, cells = tables[0].shape
    edges = low + (high - low) * np.arange(cells + 1) / cells
    weights = np.full((n, cells), 1 / n)
    out = np.empty((len(scores), len(levels)))
    for t, score in enumerate(scores):
        mixture = np.empty(cells)
        for j in range(cells):
            above = sum(weights[i, j] * np.exp(-2 * tables[t][i, j] ** 2) for i in range(n))
            below = sum(weights[i, j] * np.exp(-2 * (1 - tables[t][i, j]) ** 2) for i in range(n))
            mixture[j] = 0.5 - np.log(above / below) / 4
        mixture.sort()
        for a, level in enumerate(levels):
            j = next((j for j in range(cells) if mixture[j] >= level), cells)
            out[t, a] = min(max(edges[j], thresholds[t][:, a].min()), thresholds[t][:, a].max())
        for j in range(cells):
            part = min(max((score - edges[j]) / (edges[j + 1] - edges[j]), 0), 1)
            cost = part * tables[t][:, j] ** 2 + (1 - part) * (1 - tables[t][:, j]) ** 2
            weights[:, j] *= np.exp(-2 * cost)
            weights[:, j] = (1 - share) * weights[:, j] / weights[:, j].sum() + share / n
    return out


class Franchise:
    """A hierarchical belief by dictionaries: for each node what counts of each value, and how much in all."""

    def __init__(self, parents, concentrations, base):
        """``parents[node]``, None for the root; ``concentrations[depth]``; ``base(value)``, the prior's mass there."""
        self.parents, self.concentrations, self.base = parents, concentrations, base
        self.held = [{} for _ in parents]

    def depth(self, node):
        return 0 if self.parents[node] is None else 1 + self.depth(self.parents[node])

    def cdf(self, node, x, prior_cdf):
        """P(next score of a node <= x)."""
        held, a = self.held[node], self.concentrations[self.depth(node)]
        parent = self.parents[node]
        above = prior_cdf(x) if parent is None else self.cdf(parent, x, prior_cdf)
        below = sum(count * (value <= x) for value, count in held.items())
        return (a * above + below) / (a + sum(held.values()))

    def mass(self, node, value):
        """P(next score of a node = value)."""
        held, a = self.held[node], self.concentrations[self.depth(node)]
        parent = self.parents[node]
        above = self.base(value) if parent is None else self.mass(parent, value)
        return (a * above + held.get(value, 0)) / (a + sum(held.values()))

    def observe(self, node, value):
        """Count a score, and pass on to the parent the chance that it is news."""
        changes, share = [], 1.0
        while node is not None:
            changes.append((node, share))
            parent, before = self.parents[node], self.held[node].get(value, 0)
            if before and parent is not None:
                strength = self.concentrations[self.depth(node)] * self.mass(parent, value)
                share *= strength / (strength + before)
            node = parent
        for node, share in changes:
            self.held[node][value] = self.held[node].get(value, 0) + share


def franchise_posterior(counts, a, a0, base):
    """
    The posterior mean of the root of a hierarchical Dirichlet process with one family of groups, on K values, exactly:
    a sum over all numbers of tables. ``counts`` (G, K); ``base`` (K,) masses of the prior, 0 for a continuous one.
    """
    stirling = functools.cache(
        lambda n, m: 1 if n == m else 0 if m < 1 or m > n else stirling(n - 1, m - 1) + (n - 1) * stirling(n - 1, m)
    )
    total, mean = 0.0, np.zeros(counts.shape[1])
    for tables in itertools.product(*[range(1, c + 1) if c else [0] for c in counts.ravel()]):
        weight = np.prod([float(stirling(int(c), m)) for c, m in zip(counts.ravel(), tables, strict=True) if c])
        dishes = np.reshape(tables, counts.shape).sum(axis=0)
        weight *= a ** dishes.sum() * special.gamma(a0) / special.gamma(a0 + dishes.sum())
        for m, b in zip(dishes, base, strict=True):
            if m:
                weight *= special.gamma(a0 * b + m) / special.gamma(a0 * b) if b > 0 else a0 * special.gamma(m)
        total, mean = total + weight, mean + weight * (a0 * base + dishes) / (a0 + dishes.sum())
    return mean / total


def late_loop(learner, scores, levels, delay, mask=None, context=None):
    """Thresholds and final state of one sequence by a plain loop that observes each score `delay` rounds late."""
    sized = "rounds" in inspect.signature(learner.init).parameters
    state = learner.init(rounds=len(scores)) if sized else learner.init()
    rows = np.broadcast_to(levels, (len(scores), np.shape(levels)[-1]))
    mask = np.zeros(len(scores), bool) if mask is None else mask
    found = []
    for t in range(len(scores)):
        given = {} if context is None else {"context": context[t]}
        found.append(np.asarray(learner.quantile(state, rows[t], **given)))
        then = t - delay
        if then >= 0 and not mask[then]:
            given = {} if context is None else {"context": context[then]}
            state = learner.observe(state, float(scores[then]), **given)
    return np.array(found).reshape(rows.shape), state


def late_thresholds(scores, levels, delay, prior, support, weight, discount=None, bins=None):
    """Thresholds of a belief that knows scores[:t - delay] in round t, from the formula, (T, A)."""
    known = [max(t - delay, 0) for t in range(len(scores))]
    at_once = belief_thresholds(scores, levels, prior, support, weight, discount, bins)
    return np.array([at_once[n] for n in known]).reshape(at_once.shape)


def late_loss_bound(t, known, level, weight):
    """What the threshold after `known` scores may cost more in round t than that after t - 1; uniform prior, [0, 1]."""
    tau = known + 1
    lam = {s: 1.0 if s == 1 else weight(s) for s in (tau, t)}
    atom = {s: 0.0 if s == 1 else (1 - lam[s]) / (s - 1) for s in (tau, t)}
    if tau == t:
        return 0.0
    gained = max(lam[t] - lam[tau], 0) + known * max(atom[t] - atom[tau], 0) + (t - tau) * atom[t]
    kept = min(1.0, lam[t] / lam[tau], atom[t] / atom[tau] if atom[tau] > 0 else 1.0)
    costs = []
    for p in (level, 1 - level):
        highest, lowest = min(1, p / lam[t]), max(0, 1 - (1 - p) / lam[tau])
        costs.append(p * min(highest - lowest, p * (1 - kept) / lam[t], gained / max(lam.values())))
    return max(costs)


def delayed_bound(rounds, level, delay, weight, concentration):
    """The bound on regret with a delay, term by term, for a concentration h_t that does not fall."""
    steepest = max(level, 1 - level)
    total = steepest**2 / 2 * concentration(max(rounds, 1)) if rounds else steepest**2 / 2
    for t in range(1, rounds + 1):
        total += min(steepest, steepest**2 / (2 * concentration(t)))
        total += late_loss_bound(t, max(t - 1 - delay, 0), level, weight)
    return total


def late_loss_discounted(t, known, level, lam, beta):
    """The same for a belief that is discounted by beta and gives the prior lam besides; uniform prior, [0, 1]."""
    tau = known + 1
    if tau == t:
        return 0.0
    share = {s: lam + (1 - lam) * beta ** (s - 1) for s in (tau, t)}
    gained = (1 - lam) * (1 - beta ** (t - tau))
    kept = min(1.0, share[t] / share[tau], beta ** (t - tau) if known else 1.0)
    costs = []
    for p in (level, 1 - level):
        highest, lowest = min(1, p / share[t]), max(0, 1 - (1 - p) / share[tau])
        costs.append(p * min(highest - lowest, p * (1 - kept) / share[t], gained / max(share.values())))
    return max(costs)


def group_bound(before, level, root_weight, own_weight, width, mu):
    """
    The bound on the regret of a group below a root, term by term, where every score counts for the root.

    `before`: how many scores the root has before each round of the group; `root_weight(n)`: the prior's share in it
    after n of them; `own_weight(n)`: the root's share in the group in its n-th round; `mu`: least density times width.
    """
    steepest, rounds = max(level, 1 - level), len(before)
    weight = {n: own_weight(n) * (n - 1) / (1 - own_weight(n)) for n in range(2, rounds + 1)}
    share = {n: root_weight(before[n - 1]) for n in range(2, rounds + 1)}
    total = 1 + weight[rounds]
    for n in range(2, rounds + 1):
        total += min(1, steepest / (2 * weight[n] * share[n] * mu))
    for n in range(2, rounds):
        gained = (1 - max(share[n], share[n + 1])) * (1 - before[n - 1] / before[n])
        total += weight[n] * min(abs(share[n] - share[n + 1]) + gained, 1) + max(weight[n] - weight[n + 1], 0)
    return steepest * width * total


def coverage_band(levels, concentrations, delta):
    """Least and most covered rounds that iid scores leave with probability delta/2 each, by exact distributions."""
    found = []
    for level in levels:
        ends = []
        for side in (0, 1):  # each score is covered if its rank is at most this, and only if it is at most that
            wanted = [level * (n + h) - (h if side == 0 else 0) for n, h in enumerate(concentrations)]
            top = [n if side == 0 else n + 1 for n in range(len(wanted))]
            ranks = [min(max(math.ceil(x), 0), most) for x, most in zip(wanted, top, strict=True)]
            ranks[0] = 0 if side == 0 else 1  # of the first score nothing is known
            ends.append(count_distribution([rank / (n + 1) for n, rank in enumerate(ranks)]))
        low = max(k for k in range(len(ends[0])) if ends[0][:k].sum() <= delta / 2)
        high = min(k for k in range(len(ends[1])) if ends[1][k + 1 :].sum() <= delta / 2)
        found.append((low, high))
    return found


def half_bets(p, spread):
    """What a jumper's bets pay for p: on nothing, on high and low numbers, and on outer and inner ones."""
    outer = abs(2 * p - 1)
    pays = [1.0, 1 + (p - 0.5), 1 - (p - 0.5)]
    return [*pays, 1 + (outer - 0.5), 1 - (outer - 0.5)] if spread else pays


def jumper_capital(p, rate, spread):
    """Capital of the simple jumper after each round, from its definition."""
    own = [1 / len(half_bets(0.5, spread))] * len(half_bets(0.5, spread))
    path = []
    for number in p:
        whole = sum(own)
        own = [(1 - rate) * part + rate * whole / len(own) for part in own]
        own = [part * pay for part, pay in zip(own, half_bets(number, spread), strict=True)]
        path.append(sum(own))
    return np.array(path)


def mixture_capital(p, nodes, side, floor):
    """Logarithm of the capital of the mixture of power bets: sums of logarithms, then their weighted mean."""
    place, weight = special.roots_legendre(nodes)
    sides = {"low": [p], "high": [1 - p], "both": [p, 1 - p]}[side]
    paths = []
    for numbers in sides:
        for x, w in zip(place, weight, strict=True):
            power = (x + 1) / 2
            # Level up to the floor, then the power: what it would pay on average if it were not scaled.
            mean = power * floor**power + (1 - floor**power)
            pays = np.log(power / mean) + (power - 1) * np.log(np.maximum(numbers, floor))
            paths.append(np.log(w / 2 / len(sides)) + np.cumsum(pays))
    return special.logsumexp(paths, axis=0)


def gamblers_since_each_round(p, rates, spread):
    """Statistic of Shiryaev and Roberts: what gamblers own who began in each of the rounds, added up."""
    total = np.zeros(len(p))
    for start in range(len(p)):
        total[start:] += np.mean([jumper_capital(p[start:], rate, spread) for rate in rates], axis=0)
    return total


def binned_rank(before, score, coin, bins, low, high):
    """Smoothed rank of a score among those before it, compared by their bins."""
    edges = [low + k * (high - low) / bins for k in range(1, bins)]
    place = [sum(edge <= x for edge in edges) for x in [*before, score]]
    less, equal = sum(k < place[-1] for k in place[:-1]), sum(k == place[-1] for k in place[:-1])
    return (less + coin * (equal + 1)) / (len(before) + 1)


def judged(scores, thresholds, level, low, high, windows):
    """Measures of the benchmark of methods, for one level: every sum by itself, the best threshold by trying all."""
    width = high - low

    def loss(threshold, score):
        inside = min(max(threshold, low), high)
        return ((1 - level) * (inside - score) if inside >= score else level * (score - inside)) / width

    def regret_of(rounds):
        paid = sum(loss(thresholds[t], scores[t]) for t in rounds)
        return paid - min(sum(loss(fixed, scores[t]) for t in rounds) for fixed in {scores[t] for t in rounds})

    def error_of(rounds):
        return abs(sum(scores[t] <= thresholds[t] for t in rounds) / len(rounds) - level)

    every = list(range(len(scores)))
    size, longer = divmod(len(scores), windows)
    parts, start = [], 0
    for k in range(windows):  # the first few are longer by one, until nothing is left over
        stop = start + size + (k < longer)
        parts.append(every[start:stop])
        start = stop
    regrets = [regret_of(part) for part in parts]
    return {
        "loss": sum(loss(thresholds[t], scores[t]) for t in every) / len(scores),
        "regret": regret_of(every),
        "windowed regret": sum(regrets) / windows,
        "worst window": max(regrets),
        "coverage": sum(scores[t] <= thresholds[t] for t in every) / len(scores),
        "coverage error": error_of(every),
        "windowed coverage error": sum(map(error_of, parts)) / windows,
        "width": sum((min(max(r, low), high) - low) / width for r in thresholds) / len(scores),
        "outside": sum(not low <= r <= high for r in thresholds) / len(scores),
    }


def jackknife_variance(numbers, length):
    """Return the variance of a mean by leaving out one block of numbers after the other, for what they sum to."""
    blocks = [numbers[i : i + length] for i in range(0, len(numbers) - length + 1, length)]
    left = [(sum(numbers) - sum(block)) / (len(numbers) - length) for block in blocks]
    centre = sum(left) / len(left)
    spread = sum((x - centre) ** 2 for x in left) / (len(left) - 1)
    return spread * (len(numbers) - length) ** 2 / (length * len(numbers))


def importance_weighted_thresholds(scores, weights, levels, bins, t):
    """Return quantiles of λ P0 + (1 - λ) Σ w_i δ(edge_i) / Σ w_i on [0, 1], λ = 1/√t, scores at upper edges of bins."""
    edges, share = np.ceil(np.asarray(scores) * bins) / bins, 1 / np.sqrt(t)
    share = share if np.sum(weights) > 0 else 1.0

    def cdf(x):
        known = np.sum(weights * (edges <= x + 1e-13)) / np.sum(weights) if share < 1 else 0.0
        return share * x + (1 - share) * known

    def smallest(level):
        low, high = 0.0, 1.0
        if level == 0:
            return low
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if cdf(middle) >= level else (middle, high)
        return high

    return np.array([smallest(level) for level in levels])


SHAPES = {"cauchy": stats.cauchy, "normal": stats.norm, "log_normal": stats.norm, "student_t": stats.t(4.0)}
MEAN_ERRORS = {  # the scale of a shape whose mean absolute error is 1; Cauchy's: of a normal one, the median error
    "cauchy": stats.norm.ppf(0.75) * math.sqrt(math.pi / 2),
    "normal": math.sqrt(math.pi / 2),
    "log_normal": math.sqrt(math.pi / 2),
    "student_t": 1 / stats.t(4.0).expect(abs),
}


def forecast_thresholds(scores, levels, location, scale_memory, shape, low=-math.inf, high=math.inf):
    """
    Thresholds of a location and a scale that are learnt, each round from sums over all rounds before it.

    `location(z)` is where the next of the scores z is expected, on the axis of the shape.
    """
    unit, dist, kept = MEAN_ERRORS[shape], SHAPES[shape], 1 - 1 / scale_memory
    to, back = (np.log, np.exp) if shape == "log_normal" else (np.asarray, np.asarray)
    with np.errstate(divide="ignore"):
        ends = to(np.array([low, high], float))
    z, errors, rows = [], [], []
    for t, score in enumerate(scores):
        if t == 0:
            place, scale = 0.0, 1.0
        else:
            place = location(np.array(z))
            fading = kept ** np.arange(t - 2, -1, -1.0)
            scale = abs(z[0]) if t == 1 else np.sum(fading * errors[1:]) / np.sum(fading)
            scale = scale if t > 1 or scale > 0 else 1.0
        scale = max(scale * unit, 64 * np.finfo(float).eps * abs(place) + 2.0**20 * np.finfo(float).tiny)
        scale, place = min(scale, ends[1] - ends[0]), min(max(place, ends[0]), ends[1])
        below, upto = dist.cdf((ends - place) / scale)
        asked = below + (upto - below) * np.asarray(levels)
        row = np.clip(back(place + scale * dist.ppf(asked)), low, high)
        rows.append(np.where(np.asarray(levels) == 0, low, np.where(np.asarray(levels) == 1, high, row)))
        limit = 10 * scale if t >= 10 else np.inf
        z.append(float(np.clip(to(score), place - limit, place + limit)))
        errors.append(abs(z[-1] - place))
    return np.array(rows)


def discounted_mean(z, memory):
    """Σ (1 - 1/memory)^age z / Σ (1 - 1/memory)^age."""
    weights = (1 - 1 / memory) ** np.arange(len(z) - 1, -1, -1.0)
    return np.sum(weights * z) / np.sum(weights)


def autoregression(z, order, memory):
    """m + θ·x, θ by ridge regression on the distances of the last scores to the mean of their time."""
    means = np.array([0.0] + [discounted_mean(z[:t], memory) for t in range(1, len(z) + 1)])
    if not order:
        return means[-1]

    def distances(t):  # of the scores before round t from their mean, the newest first
        return np.array([z[t - 1 - i] - means[t] if t - 1 - i >= 0 else 0.0 for i in range(order)])

    gram, moment, mass = np.zeros((order, order)), np.zeros(order), 0.0
    for t in range(len(z)):
        weight = (1 - 1 / memory) ** (len(z) - 1 - t)
        gram += weight * np.outer(distances(t), distances(t))
        moment += weight * distances(t) * (z[t] - means[t])
        mass += weight
    ridge = (1e-5 + 1 / max(mass, 1) ** 2) * np.trace(gram) / order
    return means[-1] + distances(len(z)) @ np.linalg.solve(gram + (ridge or 1.0) * np.eye(order), moment)


def recalibrated(base_cdf, base_quantile, by_quantile, scores, levels, known=None):
    """
    Thresholds through PITs: `base_cdf(past, x)` is that of the next score, its left limit, `by_quantile(pits, levels)`.

    `known[t]` lists the rounds whose scores are known before round t; by default all before it.
    """
    pits, rows = [], []
    for t, score in enumerate(scores):
        past = list(range(t)) if known is None else known[t]
        before = [scores[i] for i in past]
        rows.append(base_quantile(before, np.clip(by_quantile([pits[i] for i in past], levels), 0, 1)))
        pits.append(base_cdf(before, score))
    return np.array(rows), np.array(pits)
