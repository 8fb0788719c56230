"""Compiled programs kept on disk, for those who ask for it."""

import os
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache


def compilation_cache(directory: str | os.PathLike[str] | None = None) -> Path:
    """
    Keep compiled programs on disk, so that later processes need not compile them again.

    Nothing in this package calls it for you: it sets JAX's own options, for every program of the process.

    Parameters
    ----------
    directory : path, optional
        Where to keep them; made if it does not exist. By default ``dpconformal`` under ``$XDG_CACHE_HOME``, or under
        ``~/.cache``. Whoever can write there can make your process run code: choose a directory of your own.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    ValueError
        If it cannot be written to.

    Examples
    --------
    >>> import tempfile
    >>> compilation_cache(tempfile.mkdtemp()).is_dir()  # doctest: +SKIP
    True
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = (Path(directory) if directory is not None else root / "dpconformal").expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ValueError(f"directory = {str(path)!r} cannot be made: {error}") from error
    if not os.access(path, os.W_OK):
        raise ValueError(f"directory = {str(path)!r} cannot be written to: choose another")
    jax.config.update("jax_compilation_cache_dir", str(path))
    # Ours are small programs and many: keep them all.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax_cache.reset_cache()  # JAX looks at the directory once, at its first compilation
    return path
