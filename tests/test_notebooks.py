"""The notebooks run from top to bottom, and are stored with the outputs and pictures of such a run."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import nbformat
import numpy as np
import pytest
from loading_scripts import load_script
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
make_notebook: ModuleType = load_script("make_notebook")
Notebook = nbformat.NotebookNode

# Stored runs take longer than a test may.
SHORTER = {
    "0_colab": (("STEPS = 300", "STEPS = 120"),),
    "1_convert_and_look": (),
    "2_from_8_to_128": (
        ("SECONDS = 1.0", "SECONDS = 0.02"),
        ("(0, 1, 2, 4, 8, 16)", "(0,)"),
        ("(8, 16, 32, 64, 128)", "(8, 128)"),
        ("stride=24", "stride=96"),
    ),
    "3_super_resolution": (("EPOCHS = 5", "EPOCHS = 1"),),
    "4_doctor": (("STEPS = 60", "STEPS = 10"), ("range(len(os.sched_getaffinity(0)) + 1)", "range(1)")),
    "5_classifier": (("EPOCHS = 8", "EPOCHS = 1"), ("range(CORES + 1)", "(0,)"), ("range(4)", "range(2)")),
}
# The output of these cells depends on the machine, or on the version of Pillow that wrote the inputs.
VARYING = (
    "lmdbloader info", "lmdbloader.estimate(", "lmdbloader verify", "train_epoch(", "scores.model.psnrs", "evaluate(",
    "lab.profile(", "lab.doctor(", "st_size", "interpolate(",
    "lab.bench(", "fits", "rglob(", "gpu_busy(", "print(after)",
)  # fmt: skip
# A line of the study's table: who loads, and samples a second for each batch size.
TABLE = r"^((?:Data)?Loader(?: \(\w+\))?) +((?:[\d,]+ +){2,})"
# Who loads; seconds of an epoch, waiting, top-1.
ARM = r"^((?:Data)?Loader(?: \(\w+\))?) +(\d+\.\d+) +(\d+)% +(\d+)%$"
OF_A_MACHINE = re.compile(r"(?<![\w.<])/(tmp|home|root|usr|var|work|Users|private)\b")


def run_again(path: Path, folder: Path) -> Notebook:
    """Run a notebook here and now; with less training than the stored one, to be done sooner."""
    notebook = nbformat.read(path, as_version=4)
    for old, new in SHORTER[path.stem]:
        (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and old in cell.source]
        cell.source = cell.source.replace(old, new)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    with warnings.catch_warnings():
        # Ignore warnings of Jupyter's own packages.
        warnings.simplefilter("ignore")
        make_notebook.run_notebook(notebook, folder)
    make_notebook.clean(notebook, folder)
    return notebook


def code_cells(notebook: Notebook) -> list[Notebook]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text_of(cell: Notebook) -> str:
    """Return all text that a cell shows."""
    return "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in cell.outputs)


def pictures_of(notebook: Notebook) -> list[Image.Image]:
    return [
        Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
        for cell in code_cells(notebook)
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]


def whole_text(notebook: Notebook) -> str:
    return "\n".join(text_of(cell) for cell in code_cells(notebook))


def table_of(notebook: Notebook) -> dict[str, list[float]]:
    return {
        name: [float(number.replace(",", "")) for number in numbers.split()]
        for name, numbers in re.findall(TABLE, whole_text(notebook), re.MULTILINE)
    }


def pairs_stay_pairs(notebook: Notebook) -> None:
    text = whole_text(notebook)
    assert "photographs on both sides: none" in text and "= True" in text
    own, other = map(float, re.findall(r"(?:by|sample's by) (\d+\.\d)", text))
    assert own < 5 < 20 < other
    assert "its checksum does not match" in text


def a_loader_is_faster_in_small_batches(notebook: Notebook) -> None:
    speeds = table_of(notebook)
    assert speeds["Loader"][0] > speeds["DataLoader (files)"][0]  # 36 x on a busy machine


def srcnn_is_better_than_bicubic(notebook: Notebook) -> None:
    gains = [float(gain) for gain in re.findall(r"([+-]\d+\.\d+) dB$", whole_text(notebook), re.MULTILINE)]
    assert len(gains) == 3
    assert sum(gains) > 0


def srcnn_is_better_than_bicubic_at_once(notebook: Notebook) -> None:
    gains = [float(gain) for gain in re.findall(r"([+-]\d+\.\d+) dB against bicubic on", whole_text(notebook))]
    assert len(gains) == 3
    assert gains[-1] > 0


def both_patients_get_a_diagnosis_and_a_second_look(notebook: Notebook) -> None:
    text = whole_text(notebook)
    assert len(re.findall(r"The loop waits for data \d+%|Loading keeps up", text)) == 3
    assert len(re.findall(r"The prediction (?:held|did not hold|was a bound): [\d.]+ ms a step", text)) == 2


def arms_of(notebook: Notebook) -> dict[str, tuple[float, int, int]]:
    """Return who loads -> seconds of an epoch, waiting and top-1 in percent."""
    rows = re.findall(ARM, whole_text(notebook), re.MULTILINE)
    assert [name for name, *_ in rows] == ["DataLoader (files)", "DataLoader (LMDB)", "Loader"]
    return {name: (float(took), int(waits), int(top1)) for name, took, waits, top1 in rows}


# Properties that the noise of a busy machine cannot break.
ALWAYS: dict[str, Callable[[Notebook], object]] = {
    "0_colab": srcnn_is_better_than_bicubic_at_once,
    "1_convert_and_look": pairs_stay_pairs,
    "2_from_8_to_128": a_loader_is_faster_in_small_batches,
    "3_super_resolution": srcnn_is_better_than_bicubic,
    "4_doctor": both_patients_get_a_diagnosis_and_a_second_look,
    "5_classifier": arms_of,
}


def test_every_notebook_is_known_to_the_script_and_tested() -> None:
    stored = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert stored == sorted(path.stem for path in make_notebook.NOTEBOOKS) == sorted(SHORTER) == sorted(ALWAYS)


@pytest.mark.parametrize("path", make_notebook.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_stored_outputs_are_current(own_cache: Path, path: Path, tmp_path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    fresh = run_again(path, tmp_path)
    ALWAYS[path.stem](fresh)
    for new, old in zip(code_cells(fresh), code_cells(stored), strict=True):
        kinds = [[(o.output_type, o.get("name"), sorted(o.get("data", {}))) for o in c.outputs] for c in (new, old)]
        assert kinds[0] == kinds[1], f"{new.source}\n{text_of(new)}"
        if not any(word in new.source for word in VARYING):
            texts = [re.sub(r"num_threads=\d+", "", text_of(cell)) for cell in (new, old)]
            assert texts[0] == texts[1], new.source
    assert [p.size for p in pictures_of(fresh)] == [p.size for p in pictures_of(stored)]
    for picture in pictures_of(fresh) + pictures_of(stored):
        assert np.asarray(picture.convert("L")).std() > 10, "a picture of nothing"
    assert not OF_A_MACHINE.search(whole_text(fresh))


@pytest.mark.parametrize("path", make_notebook.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_stored_notebook_has_its_pictures_and_nothing_of_the_machine_it_ran_on(path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    ALWAYS[path.stem](stored)
    code = code_cells(stored)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert pictures_of(stored)
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert not [cell for cell in stored.cells if cell.metadata]
    assert sorted(stored.metadata) == ["kernelspec", "language_info"]
    assert not OF_A_MACHINE.search(path.read_text("utf-8"))
    assert path.stat().st_size < make_notebook.MAX_NBYTES
    # An article: it begins with its title, and describes its steps and its result.
    assert stored.cells[0].source.startswith("# ")
    prose = sum(len(cell.source) for cell in stored.cells if cell.cell_type == "markdown")
    assert prose > 0.4 * sum(len(cell.source) for cell in code)


@pytest.mark.parametrize("path", make_notebook.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_becomes_a_page_of_the_site(path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    text, pictures = load_script("docs_notebooks").page(path)
    assert text.startswith("# ") and "\n# " not in re.sub(r"~~~~.*?~~~~", "", text, flags=re.DOTALL)
    assert len(pictures) == len(pictures_of(stored))
    assert set(re.findall(r"\]\(([^)]+\.png)\)", text)) == set(pictures)
    for target in re.findall(r"\]\(([^)]+)\.md\)", text):
        assert (path.parent / f"{target}.ipynb").exists()
    for cell in code_cells(stored):
        assert cell.source in text
    assert f"notebooks/{path.stem}.md" in (ROOT / "mkdocs.yml").read_text("utf-8")
