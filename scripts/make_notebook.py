"""Runs the notebooks again and stores them with their outputs and pictures."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("0_colab", "1_convert_and_look", "2_from_8_to_128", "3_super_resolution", "4_doctor", "5_classifier")
NOTEBOOKS = tuple(ROOT / "notebooks" / f"{name}.ipynb" for name in NAMES)
# A stored notebook is read in a browser and kept by git.
MAX_NBYTES = 1_500_000
# Color codes in the output of a command.
_TERMINAL = re.compile(r"\x1b\[[0-9;]*m")


def run_notebook(notebook: nbformat.NotebookNode, folder: Path, *, timeout: float = 300) -> None:
    """Run every cell in a fresh kernel that imports this checkout; outputs are put into the notebook.

    Args:
        notebook: Changed in place.
        folder: The kernel starts there.
        timeout: Seconds for one cell.

    Raises:
        CellExecutionError: A cell failed.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "scripts"), os.environ.get("PYTHONPATH")])),
        "TMPDIR": str(folder),  # to recognize the paths of this run
    }
    client = NotebookClient(
        notebook, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=environment)


def clean(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Remove values that differ between runs or machines: times, versions, unused forms of pictures, paths.

    Args:
        notebook: Changed in place.
        folder: The folder of the run: paths below it are stored relative to the notebook's temporary folder.
    """
    own_folder = re.compile(re.escape(str(folder)) + r"/tmp\w+/?")
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        # A stream comes in pieces whose borders depend on timing.
        joined: list[nbformat.NotebookNode] = []
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
                joined[-1].text += output.text
                continue
            data = output.get("data", {})
            if "text/plain" in data:
                data["text/plain"] = own_folder.sub("", data["text/plain"])
            if "image/png" in data:  # Pillow also offers a JPEG, and a text with an address in memory
                output["data"] = nbformat.from_dict({"image/png": data["image/png"]})
            joined.append(output)
        for output in joined:
            if output.output_type == "stream":
                output.text = own_folder.sub("", _TERMINAL.sub("", output.text.replace("\r\n", "\n")))
        if "outputs" in cell:
            cell.outputs = joined


def make(path: Path) -> int:
    """Run and store one notebook; returns the command's exit status."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_notebook(notebook, Path(folder))
        except CellExecutionError as error:
            print(f"make_notebook: {path} was left as it is; a cell failed:\n{error}", file=sys.stderr)
            return 1
        clean(notebook, Path(folder))
    complaints = [o.text for cell in notebook.cells for o in cell.get("outputs", []) if o.get("name") == "stderr"]
    if complaints:  # such as that kernels are being built, which the next run does not repeat
        print(f"make_notebook: {path} was left as it is; run again, for it wrote to stderr:", file=sys.stderr)
        print(*complaints, file=sys.stderr)
        return 1
    text = nbformat.writes(notebook)
    if len(text) > MAX_NBYTES:
        print(f"make_notebook: {len(text):,} bytes, expected at most {MAX_NBYTES:,}: smaller pictures", file=sys.stderr)
        return 1
    path.write_text(text + "\n", "utf-8")
    print(f"{path.name}: {len(text):,} bytes")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as 4_doctor (default: all)")
    options = parser.parse_args(argv)
    chosen = [path for path in NOTEBOOKS if not options.names or path.stem in options.names]
    return max((make(path) for path in chosen), default=0)


if __name__ == "__main__":
    sys.exit(main())
