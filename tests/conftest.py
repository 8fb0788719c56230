"""Test settings: 64-bit and strict JAX, shapes checked at run time, warnings as errors."""

import gc
import importlib.metadata
import os
import pathlib

# Half of the time is compilation. Unoptimised programs compile faster, and round otherwise: what holds under both, here
# and with optimisation in `make test-core`, does not hang on a rounding. JAX reads this when it starts.
# A quarter of the compiler's time is saved by not dividing small programs among threads. Versions after 0.10 do not
# know the last flag, and end.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false" * importlib.metadata.version("jaxlib").startswith("0.10."),
)

import hypothesis
import jax
from jaxtyping import install_import_hook

# Every annotated shape and dtype in the package is checked whenever a test calls into it. The hook must
# be in place before the package is imported for the first time.
_hook = install_import_hook("dpconformal", "beartype.beartype")
_hook.__enter__()

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# No one reads where in Python an operation of a program came from: a tenth less work.
jax.config.update("jax_traceback_in_locations_limit", 0)

# Most of the suite's time is compilation, much of it of the same programs in different tests and workers.
_programs = pathlib.Path(__file__).parent.parent / ".pytest_cache" / f"programs-jax-{jax.__version__}"
jax.config.update("jax_compilation_cache_dir", str(_programs))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# What is imported stays: to look for garbage among it, as often as tracing makes objects, takes a tenth of the time.
gc.freeze()
gc.set_threshold(100_000, 50, 100)

collect_ignore = ["benchmarks", "reliability"]  # commands of their own; the first need packages that tests do not

_calm = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
# HYPOTHESIS_PROFILE=thorough runs more than 10,000 examples over the suite; `make test-thorough`.
hypothesis.settings.register_profile("ci", max_examples=20, derandomize=True, **_calm)
hypothesis.settings.register_profile("thorough", max_examples=1000, **_calm)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items):
    """Start what takes a minute first."""
    items.sort(key=lambda item: "slow" not in item.keywords)


_finished = 0


def pytest_runtest_logfinish():
    """Let compiled programs go before the process has more memory maps than Linux allows, and dies of it."""
    global _finished
    _finished += 1
    maps = pathlib.Path("/proc/self/maps")
    if _finished % 20 == 0 and maps.exists() and maps.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()
