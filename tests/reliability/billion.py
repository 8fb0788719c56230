"""
A billion scores through a quantized, discounted belief, in blocks: flat memory, thresholds as exact as at the start.

    python tests/reliability/billion.py [SCORES] [DISCOUNT]
"""

import pathlib
import resource
import sys
import time
from fractions import Fraction

import jax
import numpy as np

import dpconformal as dpc

BLOCK, BINS, LEVELS = 2**22, 256, np.array([0.05, 0.3, 0.5, 0.8, 0.9, 0.99, 0.999])


def scores(block):
    """Return the scores of a block: each has a seed of its own, so that none need be kept."""
    return np.random.default_rng(block).beta(2, 5, BLOCK)


def resident():
    """Return the memory in use now, in megabytes."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def reference(count, discount):
    """
    Compute the thresholds after all scores in exact arithmetic.

    Bins get integer sums: each power of the discount is a whole number of 2^-200, wrong by less than one of them, and
    scores whose weight is below that are left out. Then level by level, in fractions.
    """
    scale, beta, bits = 2**200, Fraction(discount), 200
    weights, power = [0] * BINS, scale
    numerator, denominator = beta.numerator, beta.denominator
    block, age = (count - 1) // BLOCK, 0
    while block >= 0 and power:
        own = scores(block)[: count - block * BLOCK]
        for place in np.maximum(np.ceil(own[::-1] * BINS) - 1, 0).astype(int).tolist():
            weights[place] += power
            power = power * numerator // denominator
            age += 1
            if not power:
                break
        block -= 1
    print(f"reference: {age:,} scores weigh more than 2^-{bits}", flush=True)
    root = Fraction(np.sqrt(1 - discount))
    share = root / (beta + root)  # the schedule that goes with the discount
    left = Fraction(power, scale)  # β^n, or what is below the last bit
    prior = share + (1 - share) * left
    atoms = [(1 - share) * (1 - beta) * Fraction(weight, scale) for weight in weights]
    return np.array([float(quantile(Fraction(level), prior, atoms)) for level in LEVELS])


def quantile(level, prior, atoms):
    """Find the smallest x with prior · x + mass of atoms at or below x ≥ level."""
    below = Fraction(0)
    for k, atom in enumerate(atoms):
        edge = Fraction(k + 1, BINS)
        if prior * edge + below >= level:
            break
        if prior * edge + below + atom >= level:
            return edge
        below += atom
    return min((level - below) / prior, Fraction(1))


def main(count, discount):
    """Run, watch the memory, compare."""
    jax.config.update("jax_enable_x64", True)
    learner, state, start = dpc.Quantized(BINS, discount=discount), None, time.perf_counter()
    state, memory, covered = learner.init(), [], 0
    blocks = -(-count // BLOCK)
    for block in range(blocks):
        run = dpc.replay(learner, scores(block)[: count - block * BLOCK], LEVELS, state=state, keep="summary")
        state, covered = run.state, covered + run.covered
        memory.append(resident())
        if block in (0, 1, 3, 7, 15, 31, 63, 127) or block == blocks - 1:
            print(
                f"{int(state.seen):>13,} scores {time.perf_counter() - start:7.1f} s {memory[-1]:8.0f} MB", flush=True
            )
    seconds = time.perf_counter() - start
    found, want = np.asarray(learner.quantile(state, LEVELS)), reference(count, discount)
    print(f"coverage {dict(zip(LEVELS.tolist(), (covered / count).round(6).tolist(), strict=True))}")
    print(f"thresholds {found.tolist()}")
    print(f"furthest from the reference: {np.abs(found - want).max():.2g}")
    print(f"{count:,} scores x {LEVELS.size} levels, discount {discount}: {seconds:.0f} s, scores made included;")
    tenth = memory[len(memory) // 10]
    print(f"memory {tenth:.0f} MB after a tenth, {memory[-1]:.0f} MB at the end, {max(memory):.0f} MB at most")
    assert np.abs(found - want).max() < 1e-9


if __name__ == "__main__":
    main(int(float(sys.argv[1])) if len(sys.argv) > 1 else 10**9, float(sys.argv[2]) if len(sys.argv) > 2 else 0.9999)
