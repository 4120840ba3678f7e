"""What other services and tools read: llms.txt, the skill file, and the workflow that publishes the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
SKILL = ROOT / "skills" / "lmdbloader" / "SKILL.md"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_llms_txt_has_the_shape_of_llmstxt_org() -> None:
    title, blank, summary, *rest = (ROOT / "llms.txt").read_text("utf-8").splitlines()
    assert title == "# lmdbloader" and not blank and summary.startswith("> ")
    items = [line for line in rest if line.startswith("- ")]
    assert items and all(re.match(r"- \[[^\]]+\]\([^)\s]+\)(: .+)?$", item) for item in items)


@pytest.mark.parametrize("path", [ROOT / "llms.txt", SKILL], ids=lambda path: path.name)
def test_the_links_of_a_file_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", path.read_text("utf-8"))
    assert [target for target in targets if not (path.parent / target).is_file()] == []


def test_llms_txt_has_every_how_to() -> None:
    text = (ROOT / "llms.txt").read_text("utf-8")
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs" / "how-to").glob("*.md")]
    assert [page for page in pages if f"({page})" not in text] == []


def test_the_skill_begins_with_its_name_and_description() -> None:
    _, front, body = SKILL.read_text("utf-8").split("---\n", 2)
    about = yaml.safe_load(front)
    assert sorted(about) == ["description", "name"]
    assert about["name"] == SKILL.parent.name and 0 < len(about["description"]) <= 1024
    blocks = re.findall(r"^```\w+\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)
    assert sum(len(block.split("\n")) - 1 for block in blocks) <= 20


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_valid_and_runs_targets_of_the_makefile(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    # YAML 1.1 reads the key `on` as true.
    assert sorted(map(str, workflow)) == ["True", "concurrency", "jobs", "name", "permissions"]
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text("utf-8")))
    for job in workflow["jobs"].values():
        assert {*([job["needs"]] if "needs" in job else [])} <= {*workflow["jobs"]}
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            if "run" in step:
                assert step["run"].split()[0] == "make" and step["run"].split()[1] in targets
            else:
                assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])


def test_the_documentation_is_published_from_where_make_puts_it() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text("utf-8"))["jobs"]
    uploads = [step["with"]["path"] for step in jobs["build"]["steps"] if "upload" in step.get("uses", "")]
    assert uploads == ["site"] and jobs["deploy"]["needs"] == "build"
