"""Objects moved away after their execution: none is lost, none is taken for another, none is overwritten (DECISIONS 19)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import pytest

from connectors.objects.looks import Look
from connectors.objects.moving import Mover, Moving, NameTaken, ObjectChanged

Meanwhile = Callable[[Callable[[], object]], None]
ID = str(uuid5(NAMESPACE_URL, "an execution"))


class Folder:
    """An input folder, its places, and what was noted."""

    def __init__(self, root: Path, *, ready_suffix: str | None = None) -> None:
        self.place, self.done, self.failed = root / "in", root / "done", root / "failed"
        self.place.mkdir()
        self.noted: list[tuple[str, str]] = []
        self.mover = Mover(self.place, ready_suffix, lambda execution, path: self.noted.append((execution, path)))

    def put(self, name: str = "a.csv", content: str = "1\n") -> Path:
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def move(self, path: Path, look: Look | None = None, *, to: Path | None, failed: bool = False) -> None:
        self.mover.take_away(path, look or Look.of(path), ID, to, failed=failed)

    def holds(self) -> dict[str, str]:
        root = self.place.parent
        return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_an_object_goes_to_its_place_and_the_place_is_noted(folder: Folder) -> None:
    folder.move(folder.put(), to=folder.done)
    assert folder.holds() == {"done/a.csv": "1\n"}
    assert folder.noted == [(ID, str(folder.done / "a.csv"))]


def test_an_object_below_the_folder_keeps_its_path_there(folder: Folder) -> None:
    folder.move(folder.put("x/y/a.csv"), to=folder.done)
    assert folder.holds() == {"done/x/y/a.csv": "1\n"}


def test_an_object_is_deleted_where_there_is_no_place(folder: Folder) -> None:
    folder.move(folder.put(), to=None)
    assert folder.holds() == {}
    assert folder.noted == [(ID, "")]


def test_an_object_that_is_gone_is_a_success(folder: Folder) -> None:
    path = folder.put()
    look = Look.of(path)
    path.unlink()
    folder.move(path, look, to=folder.done)
    assert (folder.holds(), folder.noted) == ({}, [])


def test_an_object_that_changed_before_stays(folder: Folder) -> None:
    path = folder.put()
    look = Look.of(path)
    path.write_text("2\n")
    os.utime(path, ns=(look.mtime_ns, look.mtime_ns))
    with pytest.raises(ObjectChanged):
        folder.move(path, look, to=folder.done)
    assert folder.holds() == {"in/a.csv": "2\n"}


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Lets something happen between the look at an object and the taking of its name."""

    def arrange(act: Callable[[], object]) -> None:
        rename = Path.rename

        def acting(path: Path, target: Path) -> Path:
            monkeypatch.setattr(Path, "rename", rename)
            act()
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", acting)

    return arrange


def test_an_object_that_is_replaced_in_the_last_moment_gets_its_name_back(folder: Folder, meanwhile: Meanwhile) -> None:
    path = folder.put()
    meanwhile(lambda: folder.put("other", "22\n").replace(path))
    with pytest.raises(ObjectChanged):
        folder.move(path, to=folder.done)
    assert (folder.holds(), folder.noted) == ({"in/a.csv": "22\n"}, [])


def test_both_stay_when_the_name_is_taken_meanwhile_and_the_first_gets_it_once_it_is_free(
    folder: Folder, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, of = folder.put(), Look.of
    look = Look.of(path)
    meanwhile(lambda: folder.put("other", "22\n").replace(path))

    def third_comes(file: Path) -> Look:
        if file != path:
            folder.put(content="333\n")
        return of(file)

    monkeypatch.setattr(Look, "of", third_comes)
    with pytest.raises(NameTaken):
        folder.move(path, look, to=folder.done)
    hidden = Moving.begin(path, ID, failed=False)
    assert folder.holds() == {f"in/{hidden.path.name}": "22\n", "in/a.csv": "333\n"}
    path.unlink()
    folder.mover.put_back(hidden)
    assert folder.holds() == {"in/a.csv": "22\n"}


def test_an_equal_object_at_the_place_is_enough_and_another_one_is_never_overwritten(folder: Folder) -> None:
    folder.move(folder.put(), to=folder.done)
    folder.move(folder.put(), to=folder.done)
    assert folder.holds() == {"done/a.csv": "1\n"}
    folder.move(folder.put(content="2\n"), to=folder.done)
    folder.move(folder.put(content="2\n"), to=folder.done)
    assert folder.holds() == {"done/a.csv": "1\n", f"done/a.csv.{ID}": "2\n"}
    assert folder.noted[-1] == (ID, str(folder.done / f"a.csv.{ID}"))
    with pytest.raises(FileExistsError):
        folder.move(folder.put(content="3\n"), to=folder.done)
    assert "3\n" in folder.holds().values(), "it is not lost"


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM], ids=["another file system", "no hard links"])
def test_a_file_system_that_cannot_link_is_no_obstacle(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    link = os.link

    def refuse(source: Path, target: Path) -> None:
        if code == errno.EPERM or Path(source).parent != Path(target).parent:
            raise OSError(code, os.strerror(code))
        link(source, target)

    monkeypatch.setattr(os, "link", refuse)
    path = folder.put()
    os.utime(path, (1_000, 1_000))
    folder.move(path, to=folder.done)
    assert folder.holds() == {"done/a.csv": "1\n"}
    assert (folder.done / "a.csv").stat().st_mtime == 1_000
    folder.move(folder.put(content="2\n"), to=folder.done)
    assert folder.holds() == {"done/a.csv": "1\n", f"done/a.csv.{ID}": "2\n"}


class Killed(BaseException):
    """The process is gone."""


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """End the process at one of the steps of a move."""
    left = [step]

    def then(act: Callable[..., object]) -> Callable[..., object]:
        def acting(*args: object, **options: object) -> object:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return act(*args, **options)

        return acting

    for name in ("rename", "unlink"):
        monkeypatch.setattr(Path, name, then(getattr(Path, name)))
    monkeypatch.setattr(os, "link", then(os.link))


@pytest.mark.parametrize("delete", [False, True], ids=["move", "delete"])
@pytest.mark.parametrize("step", range(8))
def test_whoever_looks_next_finishes_what_a_killed_process_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, *, delete: bool
) -> None:
    folder = Folder(tmp_path, ready_suffix=".ok")
    path, place = folder.put(), None if delete else folder.failed
    folder.put("a.csv.ok", "")
    look = Look.of(path)
    with monkeypatch.context() as patch:
        kill_at(patch, step)
        try:
            folder.move(path, to=place, failed=True)
        except Killed:
            assert any(content == "1\n" for content in folder.holds().values()) or (delete and folder.noted)
    for hidden in filter(None, map(Moving.of, folder.place.iterdir())):
        assert (hidden.execution_id, hidden.failed) == (ID, True)
        if folder.mover.is_ready_file(hidden):
            folder.mover.finish_lonely_ready(hidden, place)
        elif hidden.path.exists():
            folder.mover.finish(hidden, place)
    if path.exists():  # it was not begun, so its ready file must say so
        assert (folder.place / "a.csv.ok").exists()
        folder.move(path, look, to=place, failed=True)
    assert folder.holds() == ({} if delete else {"failed/a.csv": "1\n", "failed/a.csv.ok": ""})
    assert set(folder.noted) == {(ID, "" if delete else str(folder.failed / "a.csv"))}


@pytest.mark.parametrize("name", ["a.csv", "a.b.c", " ", "ä.csv", f"{ID}.csv", ".x.moving"])
@pytest.mark.parametrize("failed", [False, True])
def test_a_moving_name_says_what_it_was(tmp_path: Path, name: str, *, failed: bool) -> None:
    begun = Moving.begin(tmp_path / name, ID, failed=failed)
    assert Moving.of(begun.path) == begun
    assert begun.original == tmp_path / name


@pytest.mark.parametrize("name", ["a.csv", ".moving", f"a.csv.{ID}.moving", ".a.csv.moving", f".{ID}.moving"])
def test_other_names_say_nothing(tmp_path: Path, name: str) -> None:
    assert Moving.of(tmp_path / name) is None
