"""
Random and mutated inputs to every reader and entry: no crash, no silent wrong answer, no hang.

    python -m reliability.fuzz --count 100000 [--only csv,npy] [--seed 1]     (in the folder tests)
"""

import argparse
import pathlib
import random
import signal
import sys
import tempfile
import time
import warnings

import jax

# A clear error names what is wrong; TypeError is Python's own for arguments that are missing or too many.
CLEAR = (ValueError, ImportError)
# What NumPy calls a ValueError is a TypeError to JAX: shapes that do not fit each other.
SHAPES = "incompatible shapes for broadcasting"
PATIENCE = 5.0


class Hang(BaseException):
    """Something took longer than it may."""


def fuzz(target, rng, count, clear=CLEAR):
    """Try a target so often; return how many inputs were refused, and the longest time for one."""
    refused, longest = 0, 0.0
    for _ in range(count):
        before = rng.getstate()
        accepted, seconds = _tried(target, rng, clear)
        if seconds > PATIENCE:  # once more: the first time, a program may have been compiled
            rng.setstate(before)
            accepted, seconds = _tried(target, rng, clear)
        refused += not accepted
        longest = max(longest, seconds)
    return refused, longest


def _tried(target, rng, clear):
    """Try a target once: whether it was accepted, and how long that took."""
    start = time.process_time()  # of this process: what else the machine does is nobody's fault
    accepted = True
    try:
        target(rng)
    except clear as error:
        if not str(error).strip():
            raise
        accepted = False
    except TypeError as error:
        if SHAPES not in str(error):
            raise
        accepted = False
    return accepted, time.process_time() - start


def main():
    """Go through the targets."""
    from . import fuzz_calls, fuzz_files, fuzz_panels

    targets = fuzz_files.TARGETS | fuzz_calls.TARGETS | fuzz_panels.TARGETS
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000, help="inputs for each target")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time for each target, at most")
    parser.add_argument("--only", default=",".join(targets).replace(", ", ": "))
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()

    def too_long(*_):
        raise Hang

    signal.signal(signal.SIGALRM, too_long)
    total = 0
    for name in asked.only.split(","):
        name = name.replace(": ", ", ")
        tried = refused = 0
        longest, begun, seed = 0.0, time.perf_counter(), asked.seed
        while tried < asked.count and time.perf_counter() - begun < asked.seconds:
            seed += 1
            count = min(200, asked.count - tried)
            signal.alarm(max(60, int(PATIENCE * count)))
            try:
                more, slowest = fuzz(targets[name], random.Random(f"{name} {seed}"), count)
            except BaseException:
                print(f"{name}: failed with seed {seed}", file=sys.stderr, flush=True)
                raise
            finally:
                signal.alarm(0)
            assert slowest < PATIENCE or tried == 0, f"{name}: {slowest:.1f} s for one input, seed {seed}"
            tried, refused, longest = tried + count, refused + more, max(longest, slowest)
        total += tried
        spent = time.perf_counter() - begun
        print(
            f"{name:20} {tried:>11,} inputs {refused:>11,} refused {spent:7.0f} s, longest {longest:5.2f} s", flush=True
        )
    print(f"{total:,} inputs", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(tempfile.gettempdir()) / "dpconformal-fuzz"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", ResourceWarning)
    main()
