"""Run the notebooks of this folder and keep their outputs: `make notebooks`, or `execute.py NAME` for one."""

import pathlib
import sys
import time

import nbformat
from nbclient import NotebookClient

HERE = pathlib.Path(__file__).parent


def execute(path, folder):
    """
    Run a notebook.

    Parameters
    ----------
    path : Path
        The notebook.
    folder : path
        Where it runs.

    Returns
    -------
    notebook
        With fresh outputs; an error in a cell is raised.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=180, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    notebook.metadata["language_info"] = {"name": "python"}  # not the version of this machine
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day, different every time
    return notebook


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.ipynb")):
        if not sys.argv[1:] or any(name in path.name for name in sys.argv[1:]):
            start = time.perf_counter()
            nbformat.write(execute(path, HERE), path)
            print(f"{path.name}: {time.perf_counter() - start:.0f} s")
