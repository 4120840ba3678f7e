"""The notebooks run from top to bottom, and are stored with the outputs and pictures of such a run."""

from __future__ import annotations

import base64
import importlib.util
import io
import re
import warnings
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"
CLASSIFIER = ROOT / "notebooks" / "classifier.ipynb"
# What these cells print depends on the machine's arithmetic, or on which release of Pillow wrote the inputs.
VARYING = ("train_epoch(", "evaluate(", "lmdbloader info", "lmdbloader.convert(")


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_notebook", ROOT / "scripts" / "make_notebook.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def stored() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def run_again(path: Path, epochs: str, fewer: str, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook here and now; with less training than the stored one, to be done sooner."""
    script = load_script()
    notebook = nbformat.read(path, as_version=4)
    shortened = [cell for cell in notebook.cells if epochs in cell.source]
    assert len(shortened) == 1
    shortened[0].source = shortened[0].source.replace(epochs, fewer)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    with warnings.catch_warnings():
        # What Jupyter's packages warn of among themselves is not ours to mend.
        warnings.simplefilter("ignore")
        script.run_notebook(notebook, folder)
    script.clean(notebook)
    return notebook


@pytest.fixture(scope="module")
def fresh(own_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    return run_again(NOTEBOOK, "EPOCHS = 5", "EPOCHS = 2", tmp_path_factory.mktemp("notebook"))


def text_of(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def pictures_of(notebook: nbformat.NotebookNode) -> list[Image.Image]:
    pictures = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                pictures.append(Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))))
    return pictures


def test_the_notebook_runs_and_srcnn_is_better_than_bicubic(fresh: nbformat.NotebookNode) -> None:
    output = "".join(text_of(cell) for cell in fresh.cells if "evaluate(" in cell.source and cell.cell_type == "code")
    gains = [float(gain) for gain in re.findall(r"([+-]\d+\.\d+) dB$", output, re.MULTILINE)]
    assert len(gains) == 3
    assert sum(gains) > 0


def test_what_is_stored_is_what_a_run_gives(fresh: nbformat.NotebookNode, stored: nbformat.NotebookNode) -> None:
    for new, old in zip(fresh.cells, stored.cells, strict=True):
        if new.cell_type != "code":
            continue
        kinds = [[(o.output_type, o.get("name")) for o in cell.outputs] for cell in (new, old)]
        assert kinds[0] == kinds[1], f"{new.source}\n{text_of(new)}"
        if not any(word in new.source for word in VARYING):
            assert text_of(new) == text_of(old), new.source
    assert [p.size for p in pictures_of(fresh)] == [p.size for p in pictures_of(stored)]


def test_the_stored_notebook_has_its_pictures_and_nothing_of_the_machine_it_ran_on(
    stored: nbformat.NotebookNode,
) -> None:
    nbformat.validate(stored)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert len(pictures_of(stored)) == 2
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert not [cell for cell in stored.cells if cell.metadata]
    assert sorted(stored.metadata) == ["kernelspec", "language_info"]
    shown = "".join(text_of(cell) + str([o.get("data", {}).get("text/plain") for o in cell.outputs]) for cell in code)
    assert not re.search(r"(?<![\w.])/(tmp|home|root|usr|var|work|Users|private)\b", shown)
    assert NOTEBOOK.stat().st_size < 1_500_000


def test_the_classifiers_notebook_learns_and_is_stored_with_its_pictures(own_cache: Path, tmp_path: Path) -> None:
    stored = nbformat.read(CLASSIFIER, as_version=4)
    fresh = run_again(CLASSIFIER, "EPOCHS = 5", "EPOCHS = 3", tmp_path)

    for new, old in zip(fresh.cells, stored.cells, strict=True):
        if new.cell_type == "code":
            assert [o.output_type for o in new.outputs] == [o.output_type for o in old.outputs], new.source
    assert [p.size for p in pictures_of(fresh)] == [p.size for p in pictures_of(stored)]
    assert len(pictures_of(stored)) == 2
    for notebook, least in ((stored, 60), (fresh, 25)):
        text = "".join(text_of(cell) for cell in notebook.cells if cell.cell_type == "code")
        assert max(map(int, re.findall(r"top-1 (\d+)%", text))) >= least, "chance is 17 %"
        assert re.search(r"files [\d,]+ images/s, lmdbloader [\d,]+ images/s", text)
    shown = "".join(text_of(cell) for cell in stored.cells if cell.cell_type == "code")
    assert not re.search(r"(?<![\w.])/(tmp|home|root|usr|var|work|Users|private)\b", shown)
    assert CLASSIFIER.stat().st_size < 1_500_000


def test_a_cell_that_fails_leaves_the_stored_notebook_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_script()
    broken = tmp_path / "broken.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), broken)
    before = broken.read_bytes()
    monkeypatch.setattr(script, "NOTEBOOKS", (broken,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert script.main([]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert broken.read_bytes() == before
