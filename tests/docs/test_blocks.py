"""What a page shows in a block is so: commands run and print it, fragments fit, calls bind, envelopes are those on the wire."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from unittest import mock

import click
import msgspec
import pytest
import yaml

import kawait
from schemas.envelopes import AnswerEnvelope, RequestEnvelope
from streams.cli.root import COMMANDS, cli
from tests.docs.pages import (
    PAGES,
    PRELUDE,
    README,
    ROOT,
    Block,
    all_blocks,
    blocks,
    in_backticks,
    left_for_git,
    name_of,
    newcomers_environment,
    place_of,
    prose,
)
from topologies.reading.loading import load_pipeline

# --- blocks that run --------------------------------------------------------------------------------------------------


def run(script: str, cwd: Path) -> str:
    """Run a shell block as a newcomer would."""
    command = ["bash", "-c", PRELUDE + script]
    done = subprocess.run(
        command, cwd=cwd, env=newcomers_environment(), capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_what_varies(text: str) -> str:
    """Times differ, and ids follow from the absolute path of the input."""
    text = re.sub(r"[\d.]+ s, [\d,]+ rows/s", "TIME", text)
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)


def shows(page: str, said: str) -> bool:
    """Whether a page shows what was printed; a line with nothing but an ellipsis stands for any lines."""
    parts = re.split(r"^ *…\n", without_what_varies(page), flags=re.MULTILINE)
    return re.fullmatch("(?s:.*)".join(map(re.escape, parts)), without_what_varies(said)) is not None


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo in it and, in `own`, the pipeline that the pages write."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "topologies").symlink_to(ROOT / "topologies")
    for block in all_blocks():
        name = block.value("file")
        if name is not None:
            file = folder / "own" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text)
    return folder


RUNNABLE = [block for block in all_blocks() if block.words[:1] == ("run",)]


@pytest.mark.parametrize("block", RUNNABLE, ids=place_of)
def test_a_block_runs_and_says_what_the_page_says(block: Block, workplace: Path) -> None:
    folder = workplace / "own" if block.value("in") == "own" else workplace
    said = run(block.text, folder)
    after = blocks(block.page)
    for following in after[after.index(block) + 1 :][:1]:
        if following.words == ("output",):
            assert shows(following.text, said), said
    assert [name for name in left_for_git(workplace) if not name.startswith("own/")] == []


def test_enough_of_the_pages_runs() -> None:
    assert len(RUNNABLE) >= 5
    written = {block.value("file") for block in blocks(README)} - {None}
    assert written == {"pipeline.yaml", "orders.py", "test_orders.py"}


def test_an_ellipsis_stands_for_lines_and_for_nothing_else() -> None:
    assert shows("a\n…\nd\n", "a\nb\nc\nd\n")
    assert not shows("a\n…\nd\n", "a\nb\nc\n")
    assert not shows("a\nd\n", "a\nb\nd\n")


# --- fragments, calls, envelopes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [each for each in all_blocks() if each.value("into")], ids=place_of)
def test_a_fragment_fits_into_a_pipeline(block: Block, workplace: Path) -> None:
    """`into=` a step's id or `pipeline`, of the own pipeline; `payments` is that of the demo."""
    into = block.value("into")
    path = ROOT / "topologies/csv_payments/pipeline.yaml" if into == "payments" else workplace / "own/pipeline.yaml"
    below = "" if into in {"pipeline", "payments"} else f"steps.{into}."
    overrides = [
        f"{below}{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in yaml.safe_load(block.text).items()
    ]
    load_pipeline(path, environ={"KAWAIT_TOKEN_K1": "k" * 32}, overrides=overrides)


@pytest.mark.parametrize("block", [each for each in all_blocks() if each.language == "python"], ids=place_of)
def test_python_that_is_no_file_calls_what_there_is(block: Block) -> None:
    if block.value("file") is not None:
        return
    stand_ins = {name: mock.create_autospec(getattr(kawait, name)) for name in ("reply", "submit")}
    with mock.patch.multiple(kawait, **stand_ins):
        exec(compile(block.text, place_of(block), "exec"), {})
    assert any(stand_in.called for stand_in in stand_ins.values())


def test_the_request_of_the_pages_has_the_members_of_a_request() -> None:
    (block,) = [block for block in all_blocks() if block.words == ("request",)]
    shown = msgspec.json.decode(block.text)
    assert set(shown) == set(RequestEnvelope.__struct_encode_fields__)
    msgspec.json.decode(block.text, type=RequestEnvelope)


def test_the_answer_of_the_pages_is_read_as_one() -> None:
    (block,) = [block for block in all_blocks() if block.words == ("answer",)]
    answer = msgspec.json.decode(block.text, type=AnswerEnvelope)
    assert answer.interaction_id
    assert answer.response_payload is not msgspec.UNSET


# --- commands that are named ------------------------------------------------------------------------------------------


def commands_named(page: Path) -> list[str]:
    """Each `kawait ...` of a page, up to what is a shell's: in backticks and in shell blocks."""
    shells = (line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines())
    texts = [*in_backticks(prose(page)), *shells]
    found = [match for text in texts for match in re.findall(r"(?:^|\$\(|[;|] )kawait( [^|#;)]*)", text)]
    return [text.strip() for text in found]


def flags_of(words: list[str]) -> set[str]:
    """The flags that a command takes; fails when there is no such command."""
    command: click.Command = cli
    names = {getattr(each, "name", "") for each in COMMANDS}
    if words[0] != "COMMAND" and not words[0].startswith("-"):
        assert words[0] in names, f"there is no kawait {words[0]}"
        command = cli.commands[words[0]]
        if isinstance(command, click.Group) and len(words) > 1:
            command = command.commands[words[1]]
    options = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    return {*options, "--help"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_that_a_page_names_has_these_flags(page: Path) -> None:
    for text in commands_named(page):
        flags = set(re.findall(r"(?<!\S)--[a-z-]+", text))
        assert flags <= flags_of(text.split()), text


def test_every_target_of_make_that_a_page_names_is_one() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"\bmake ([a-z]+)\b(?=[^\n`]*`|\s+#)", page.read_text())}
    assert named - targets == set()
