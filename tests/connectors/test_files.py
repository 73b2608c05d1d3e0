"""Files as an outside party: listing, identity, publication, row formats (BEHAVIOUR 4.11, 4.12; CASES 115)."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
from collections.abc import Iterable
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from connectors.objects import listing as listing_module
from connectors.objects import row_formats
from connectors.objects.listing import (
    CUT_FACTOR,
    FilesystemSource,
    Listing,
    ObjectIdentity,
    identify,
    submission_key,
)
from connectors.objects.looks import Look, read_content
from connectors.objects.publication import (
    ObjectKeyRefused,
    ObjectPublication,
    ObjectPublications,
    PublicationFailed,
    StorageFull,
    TooManyOpenGroups,
    object_key,
    remove_stale,
)
from connectors.objects.row_formats import CsvRows, JsonLines
from schemas.errors import PublicationConflict, UsageError

OLD_S = 1_700_000_000
SETTLE_MS = 1_000


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(path: Path, content: bytes = b"x", *, modified_s: float = OLD_S) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (modified_s, modified_s))
    return path


def source_of(location: Path, *include: str, ready_suffix: str | None = None) -> FilesystemSource:
    return FilesystemSource(location, include or ("*.csv",), settle_ms=SETTLE_MS, ready_suffix=ready_suffix)


def settled(source: FilesystemSource) -> Listing:
    """What is shown after everything was left alone for long."""
    source.look(0)
    return source.look(CUT_FACTOR * SETTLE_MS)


def look(location: Path, *include: str) -> Listing:
    return settled(source_of(location, *include))


def names(location: Path, *include: str) -> list[str]:
    return [found.name for found in look(location, *include).objects]


# --- coming in --------------------------------------------------------------------------------------------------------


def test_objects_are_listed_by_name_with_size_and_content_hash(tmp_path: Path) -> None:
    put(tmp_path / "b.csv", b"bb")
    put(tmp_path / "a.csv", b"a")
    put(tmp_path / "c.txt")
    assert look(tmp_path).objects == [
        ObjectIdentity("a.csv", str(tmp_path / "a.csv"), 1, sha256(b"a")),
        ObjectIdentity("b.csv", str(tmp_path / "b.csv"), 2, sha256(b"bb")),
    ]


@pytest.mark.parametrize("name", [".a.csv", "a.csv.tmp", "a.csv.part", "a.csv~", "a.csv.crdownload", "a.CSV.TMP"])
def test_hidden_and_temporary_names_are_passed_over(tmp_path: Path, name: str) -> None:
    put(tmp_path / name)
    assert look(tmp_path, "*") == Listing()


def test_patterns_reach_below_only_when_they_say_so(tmp_path: Path) -> None:
    for name in ("a.csv", "x/b.csv", "x/y/c.csv", ".hidden/d.csv"):
        put(tmp_path / name)
    assert names(tmp_path, "*.csv") == ["a.csv"]
    assert names(tmp_path, "x/*.csv") == ["x/b.csv"]
    assert names(tmp_path, "**/*.csv") == ["a.csv", "x/b.csv", "x/y/c.csv"]


def test_a_file_is_whole_once_two_looks_show_the_same_and_lie_far_enough_apart(tmp_path: Path) -> None:
    path, source = put(tmp_path / "a.csv", b"1\n"), source_of(tmp_path)
    assert source.look(0).unsettled == [str(path)]
    assert source.look(SETTLE_MS - 1).unsettled == [str(path)]
    put(path, b"1\n2\n")
    assert source.look(SETTLE_MS).unsettled == [str(path)], "it has changed: the wait begins anew"
    assert source.look(2 * SETTLE_MS - 1).unsettled == [str(path)]
    assert [found.size for found in source.look(2 * SETTLE_MS).objects] == [4]


@pytest.mark.parametrize("modified_s", [0, OLD_S, 4_000_000_000])
def test_what_time_a_file_says_it_has_does_not_matter(tmp_path: Path, modified_s: float) -> None:
    put(tmp_path / "a.csv", b"1\n", modified_s=modified_s)
    source = source_of(tmp_path)
    assert source.look(0).objects == []
    assert len(source.look(SETTLE_MS).objects) == 1


@pytest.mark.parametrize("content", [b"", b"1\n2", b"1\n16,Ann,AUD,160", "1\n2".encode("utf-16")])
def test_a_file_that_ends_within_a_line_waits_ten_times_as_long(tmp_path: Path, content: bytes) -> None:
    path, source = put(tmp_path / "a.csv", content), source_of(tmp_path)
    source.look(0)
    assert source.look(10 * SETTLE_MS - 1).unsettled == [str(path)]
    assert len(source.look(10 * SETTLE_MS).objects) == 1


@pytest.mark.parametrize(
    "content", [b"1\n", b"1\r\n", b"1\r", *("1\n".encode(name) for name in ("utf-16-le", "utf-16-be"))]
)
def test_a_file_that_ends_with_a_line_end_does_not(tmp_path: Path, content: bytes) -> None:
    put(tmp_path / "a.csv", content)
    source = source_of(tmp_path)
    source.look(0)
    assert len(source.look(SETTLE_MS).objects) == 1


def test_a_ready_file_says_that_its_object_is_whole_and_is_none_itself(tmp_path: Path) -> None:
    path, source = put(tmp_path / "a.csv", b"1\n2"), source_of(tmp_path, "*", ready_suffix=".done")
    source.look(0)
    assert source.look(100 * SETTLE_MS).unsettled == [str(path)], "without it the object waits for ever"
    (tmp_path / "a.csv.done").touch()
    listing = source.look(100 * SETTLE_MS)
    assert [found.name for found in listing.objects] == ["a.csv"]
    assert listing.passed_over == []


def test_a_ready_file_that_is_older_than_the_last_change_says_nothing(tmp_path: Path) -> None:
    path, source = put(tmp_path / "a.csv", b"1\n"), source_of(tmp_path, ready_suffix=".done")
    put(tmp_path / "a.csv.done", modified_s=OLD_S)
    assert source.look(0).unsettled == [str(path)]
    assert len(source.look(SETTLE_MS).objects) == 1, "then it is whole like any other"


def test_a_file_that_changes_while_it_is_hashed_is_unsettled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.csv", b"first\n")

    def read_and_append(file: Path) -> tuple[str, int]:
        found = read_content(file)
        put(path, b"first\nand more\n")
        return found

    monkeypatch.setattr(listing_module, "read_content", read_and_append)
    assert look(tmp_path).unsettled == [str(path)]


def test_an_object_that_did_not_change_for_too_long_is_outdated(tmp_path: Path) -> None:
    path, source = put(tmp_path / "a.csv", b"1\n"), source_of(tmp_path)
    source.look(0)
    changed_ns = path.stat().st_ctime_ns
    assert source.look(SETTLE_MS, unchanged_since_ns=changed_ns + 1).outdated == [str(path)]
    assert len(source.look(SETTLE_MS, unchanged_since_ns=changed_ns).objects) == 1


def test_files_that_no_pattern_takes_are_named(tmp_path: Path) -> None:
    for name in ("a.csv", "b.txt", ".hidden", "c.csv.tmp", "below/d.txt"):
        put(tmp_path / name, b"1\n")
    assert look(tmp_path).passed_over == ["b.txt"]
    assert sorted(look(tmp_path, "*.csv", "**/*.csv").passed_over) == ["b.txt", "below/d.txt"]


def test_a_folder_below_that_cannot_be_read_is_reported_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.csv", "shut/b.csv", "open/c.csv"):
        put(tmp_path / name, b"1\n")
    scan = os.scandir

    def refuse(folder: Path) -> object:
        if folder == tmp_path / "shut":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    listing = look(tmp_path, "**/*.csv")
    assert [found.name for found in listing.objects] == ["a.csv", "open/c.csv"]
    assert [(bad.path, bad.reason) for bad in listing.unreadable] == [(str(tmp_path / "shut"), "Permission denied")]


def test_folders_that_are_skipped_are_not_looked_into(tmp_path: Path) -> None:
    for name in ("a.csv", "done/b.csv"):
        put(tmp_path / name, b"1\n")
    source = FilesystemSource(tmp_path, ["**/*.csv"], settle_ms=SETTLE_MS, skipped=[tmp_path / "done"])
    assert [found.name for found in settled(source).objects] == ["a.csv"]


def test_an_unreadable_file_is_reported_and_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a.csv")
    put(tmp_path / "b.csv")
    (tmp_path / "c.csv").symlink_to(tmp_path / "nowhere")

    def refuse_a(file: Path) -> tuple[str, int]:
        if file.name == "a.csv":
            raise PermissionError(errno.EACCES, "Permission denied")
        return read_content(file)

    monkeypatch.setattr(listing_module, "read_content", refuse_a)
    listing = look(tmp_path)
    assert [found.name for found in listing.objects] == ["b.csv"]
    assert sorted((Path(bad.path).name, bad.reason) for bad in listing.unreadable) == [
        ("a.csv", "Permission denied"),
        ("c.csv", "a link that leads nowhere"),
    ]


def test_a_name_that_is_not_utf_8_is_reported(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")).write_bytes(b"x")
    listing = look(tmp_path)
    assert listing.objects == []
    assert listing.unreadable[0].reason == "its name is not UTF-8"


def test_pipes_and_folders_are_no_objects(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    assert look(tmp_path) == Listing()


def test_an_unchanged_file_is_read_once_and_a_changed_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "a.csv", b"one\n")
    read: list[str] = []

    def counting(file: Path) -> tuple[str, int]:
        read.append(file.name)
        return read_content(file)

    monkeypatch.setattr(listing_module, "read_content", counting)
    source = source_of(tmp_path)
    first = settled(source).objects
    assert settled(source).objects == first
    assert read == ["a.csv"]
    put(path, b"two\n")  # as long, and with the time of the first one
    assert settled(source).objects[0].sha256 == sha256(b"two\n")
    path.unlink()
    settled(source)
    assert source._hashes == {}


def test_a_missing_location_is_an_error_and_forgets_nothing(tmp_path: Path) -> None:
    place = tmp_path / "in"
    put(place / "a.csv", b"1\n")
    source = source_of(place)
    source.look(0)
    place.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        source.look(1)
    (tmp_path / "away").rename(place)
    assert len(source.look(SETTLE_MS).objects) == 1


def test_identify_gives_what_listing_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.csv", b"abc")
    assert identify(path) == look(tmp_path).objects[0]
    assert identify(path).look == look(tmp_path).objects[0].look == Look.of(path)
    monkeypatch.chdir(tmp_path)
    assert identify("../" + tmp_path.name + "/a.csv") == identify(path)
    assert settled(source_of(Path("..") / tmp_path.name)).objects == [identify(path)]


def test_a_file_that_changes_while_it_is_identified_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, contents = put(tmp_path / "a.csv", b"one\n"), [b"two\n"]

    def read_and_change(file: Path) -> tuple[str, int]:
        found = read_content(file)
        if contents:
            put(file, contents.pop())
        return found

    monkeypatch.setattr(listing_module, "read_content", read_and_change)
    assert identify(path).sha256 == sha256(b"two\n")


@pytest.mark.parametrize(("name", "error"), [("gone.csv", FileNotFoundError), (".", IsADirectoryError)])
def test_identify_needs_a_file(tmp_path: Path, name: str, error: type[OSError]) -> None:
    with pytest.raises(error):
        identify(tmp_path / name)


def test_a_submission_key_holds_path_and_content() -> None:
    key = submission_key(ObjectIdentity("a.csv", "/in/a.csv", 3, "beef"))
    assert key == "object:filesystem:/in/a.csv:beef"
    assert submission_key(ObjectIdentity("a:b", "/in/a:b\\c", 3, "")) == "object:filesystem:/in/a\\:b\\\\c:_"


# --- going out --------------------------------------------------------------------------------------------------------


def publication(location: Path, key: str = "a.out", *, instance: str = "w1", attempt: int = 1) -> ObjectPublication:
    return ObjectPublication(location, key, instance=instance, attempt=attempt)


def everything(location: Path) -> list[str]:
    return sorted(path.name for path in location.rglob("*"))


def test_nothing_appears_before_the_commit_and_nothing_else_after_it(tmp_path: Path) -> None:
    out = publication(tmp_path)
    out.write(b"one ")
    (temporary,) = everything(tmp_path)
    assert temporary.startswith(".kawait-publish-1-w1-")
    out.write(b"two")
    published = out.commit()
    assert everything(tmp_path) == ["a.out"]
    assert (tmp_path / "a.out").read_bytes() == b"one two"
    assert (published.path, published.size, published.sha256) == (str(tmp_path / "a.out"), 7, sha256(b"one two"))
    assert not published.already_there


def test_an_equal_object_is_success(tmp_path: Path) -> None:
    put(tmp_path / "a.out", b"same")
    out = publication(tmp_path, attempt=2)
    out.write(b"same")
    assert out.commit().already_there
    assert everything(tmp_path) == ["a.out"]


def test_another_object_is_a_conflict_and_stays(tmp_path: Path) -> None:
    put(tmp_path / "a.out", b"theirs")
    out = publication(tmp_path)
    out.write(b"ours")
    with pytest.raises(PublicationConflict, match=r"a\.out is there already with other content: 6 bytes"):
        out.commit()
    assert everything(tmp_path) == ["a.out"]
    assert (tmp_path / "a.out").read_bytes() == b"theirs"


def test_of_two_writers_one_appears_and_neither_disturbs_the_other(tmp_path: Path) -> None:
    zombie, owner = publication(tmp_path), publication(tmp_path)
    zombie.write(b"row 1\n")
    owner.write(b"row 1\nrow 2\n")
    assert not owner.commit().already_there
    with pytest.raises(PublicationConflict):
        zombie.commit()
    assert (tmp_path / "a.out").read_bytes() == b"row 1\nrow 2\n"


def test_an_abort_leaves_nothing(tmp_path: Path) -> None:
    with publication(tmp_path) as out:
        out.write(b"x")
    out.abort()
    assert everything(tmp_path) == []


def test_a_key_may_name_folders_below_the_location(tmp_path: Path) -> None:
    with publication(tmp_path, "2024/05/a.out") as out:
        out.commit()
    assert (tmp_path / "2024/05/a.out").read_bytes() == b""


@pytest.mark.parametrize("key", ["", " ", "/etc/x", "../x", "a/../../x", "a/..", "..", "a\0b", "folder/", "link/x"])
def test_a_key_may_not_leave_the_location(tmp_path: Path, key: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path)
    with pytest.raises(ObjectKeyRefused):
        publication(tmp_path / "out", key)
    assert everything(tmp_path) == ["link", "out"]


def test_key_templates() -> None:
    assert object_key("{groupKey}.out", {"groupKey": "a.csv"}) == "a.csv.out"
    assert object_key("{a}/{b}", {"a": "1", "b": "{a}"}) == "1/{a}"
    with pytest.raises(ObjectKeyRefused, match=r"the value of \{b\} is missing; known: a"):
        object_key("{a}/{b}", {"a": "1"})
    with pytest.raises(ObjectKeyRefused, match="blank"):
        object_key("{a}.out", {"a": " "})


class FullDisk:
    """A file whose flush finds the disk full."""

    def __init__(self, error: int = errno.ENOSPC) -> None:
        self.error = error
        self.closed = False

    def write(self, chunk: bytes) -> int:
        raise OSError(self.error, os.strerror(self.error))

    def flush(self) -> None:
        self.write(b"")

    close = flush


@pytest.mark.parametrize("step", ["write", "commit"])
def test_a_full_disk_is_named_and_leaves_no_file(tmp_path: Path, step: str) -> None:
    out = publication(tmp_path)
    out._file.close()
    out._file = FullDisk()  # type: ignore[assignment]
    with pytest.raises(StorageFull, match=r"no room for .*a\.out after 0 bytes: free space"):
        out.write(b"x") if step == "write" else out.commit()
    assert everything(tmp_path) == []


def test_another_fault_is_named_too(tmp_path: Path) -> None:
    put(tmp_path / "file")
    with pytest.raises(PublicationFailed, match=r"cannot publish .*a\.out: "):
        publication(tmp_path / "file")


def test_without_hard_links_a_rename_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    first, second = publication(tmp_path), publication(tmp_path)
    assert not first.commit().already_there
    assert second.commit().already_there
    assert everything(tmp_path) == ["a.out"]


def test_stale_files_of_this_instance_are_removed(tmp_path: Path) -> None:
    for instance in ("w1", "x-w1", "pod/a 1"):
        publication(tmp_path, "deep/a.out", instance=instance)._file.close()
    put(tmp_path / "deep" / ".kawait-publish-keep.tmp")
    assert len(remove_stale(tmp_path, instance="w1")) == 1
    assert len(remove_stale(tmp_path, instance="pod/a 1")) == 1
    assert [name for name in everything(tmp_path / "deep") if "x-w1" in name]
    assert len(everything(tmp_path / "deep")) == 2
    assert remove_stale(tmp_path / "nowhere", instance="w1") == []


def test_a_long_instance_name_still_makes_a_file_name(tmp_path: Path) -> None:
    publication(tmp_path, instance="w" * 300)._file.close()
    assert len(remove_stale(tmp_path, instance="w" * 300)) == 1


def test_groups_are_bounded_and_committed_in_order(tmp_path: Path) -> None:
    out = ObjectPublications(tmp_path, instance="w1", attempt=1, open_groups_max=2)
    out.publication("b").write(b"1")
    out.publication("a").write(b"2")
    out.publication("b").write(b"3")
    with pytest.raises(TooManyOpenGroups, match="more than 2 objects"):
        out.publication("c")
    assert [Path(done.path).name for done in out.commit()] == ["b", "a"]
    assert (tmp_path / "b").read_bytes() == b"13"


def test_a_conflict_in_one_group_leaves_no_temporary_file(tmp_path: Path) -> None:
    put(tmp_path / "b", b"theirs")
    with ObjectPublications(tmp_path, instance="w1", attempt=1) as out:
        for key in ("a", "b", "c"):
            out.publication(key).write(b"ours")
        with pytest.raises(PublicationConflict):
            out.commit()
    assert everything(tmp_path) == ["a", "b"]


# --- row formats ------------------------------------------------------------------------------------------------------


class Row(BaseModel):
    id: UUID
    payee: str
    amount: Decimal
    note: str | None = None
    count: int = 0
    ratio: float = 0.0
    done: bool = False
    kind: Annotated[Literal["-a", "b"], Field()] = "b"


ROW = Row(id=UUID(int=1), payee="Ann", amount=Decimal("-12.50"))


def encode(rows: Iterable[Row]) -> list[list[str]]:
    text = CsvRows(Row).encode(row.model_dump_json().encode() for row in rows).decode()
    return list(csv.reader(StringIO(text, newline=""), strict=True))


def test_csv_header_and_row() -> None:
    assert CsvRows(Row).header == b"id,payee,amount,note,count,ratio,done,kind\r\n"
    row = ROW.model_dump_json().encode()
    assert CsvRows(Row).encode([row]) == (b"00000000-0000-0000-0000-000000000001,Ann,-12.50,,0,0.0,false,b\r\n")
    assert CsvRows(Row).encode([]) == b""


@pytest.mark.parametrize("payee", ['a"b', "a,b", "a\nb", "a\rb", "a\r\nb", "", " a ", "Zoë", "'a", "a=b", "😀\u2028"])
def test_texts_survive(payee: str) -> None:
    assert encode([ROW.model_copy(update={"payee": payee})])[0][1] == payee


@pytest.mark.parametrize("payee", ["=cmd()", "+1", "-1", "@x", " =x", "\t=x", "\r\n=x", "＝x", "\ufeff=x"])
def test_a_text_that_would_run_gets_an_apostrophe(payee: str) -> None:
    assert encode([ROW.model_copy(update={"payee": payee, "note": payee})])[0][1:4:2] == [f"'{payee}", f"'{payee}"]


class Texts(BaseModel):
    first: str
    second: str | None
    third: int


@given(st.lists(st.builds(Texts, first=st.text(), second=st.none() | st.text(), third=st.integers()), max_size=3))
def test_rows_are_written_as_the_csv_module_writes_them(rows: list[Texts]) -> None:
    text = StringIO()
    shown = [(_shown(row.first), _shown(row.second), row.third) for row in rows]
    csv.writer(text, lineterminator="\r\n").writerows(shown)
    assert CsvRows(Texts).encode(row.model_dump_json().encode() for row in rows) == text.getvalue().encode()


@given(st.lists(st.text(alphabet='a,"\r\n =é'), min_size=2, max_size=2))
def test_texts_are_quoted_as_the_csv_module_quotes_them(texts: list[str]) -> None:
    class Two(BaseModel):
        a: str
        b: str

    text = StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(map(_shown, texts))
    row = Two(a=texts[0], b=texts[1]).model_dump_json().encode()
    assert CsvRows(Two).encode([row]) == text.getvalue().encode()


def _shown(text: str | None) -> str | None:
    """With the apostrophe that keeps a spreadsheet from running it."""
    return text if text is None or row_formats._FORMULA.match(text) is None else f"'{text}"


def test_only_texts_are_guarded() -> None:
    row = encode([ROW.model_copy(update={"count": -3, "ratio": -0.5, "kind": "-a", "done": True})])[0]
    assert row[2:] == ["-12.50", "", "-3", "-0.5", "true", "'-a"]


@pytest.mark.parametrize("amount", ["100", "6730.3", "0.10", "1E+3", "123456789012345678901234567890.123456789"])
def test_decimals_are_written_as_they_are(amount: str) -> None:
    assert encode([ROW.model_copy(update={"amount": Decimal(amount)})])[0][2] == str(Decimal(amount))


def test_floats_keep_their_digits() -> None:
    assert CsvRows(Row).encode([b'{"ratio": 0.30000000000000004}']).split(b",")[5] == b"0.30000000000000004"


def test_a_field_that_is_no_cell_is_refused() -> None:
    class Nested(BaseModel):
        rows: list[Row] | None

    with pytest.raises(UsageError, match="Nested has fields that are no cells: rows; use format: jsonl"):
        CsvRows(Nested)


def test_aliases_name_the_columns() -> None:
    class Aliased(BaseModel):
        csv_id: str = Field(alias="csvId")

    assert CsvRows(Aliased).header == b"csvId\r\n"
    assert CsvRows(Aliased).encode([Aliased(csvId="7").model_dump_json(by_alias=True).encode()]) == b"7\r\n"


class Refund(BaseModel):
    id: str
    amount: str
    why: str


class Payment(BaseModel):
    id: str
    amount: Decimal


def test_several_models_share_their_columns_and_leave_the_cells_of_others_empty() -> None:
    rows = [Payment(id="a", amount=Decimal("-1.50")), Refund(id="b", amount="=1", why="refunded")]
    csv_rows = CsvRows(Payment, Refund)
    assert csv_rows.header == b"id,amount,why\r\n"
    assert csv_rows.encode(row.model_dump_json().encode() for row in rows) == b"a,-1.50,\r\nb,'=1,refunded\r\n"


def test_json_lines() -> None:
    text = JsonLines().header + JsonLines().encode([b'{"a":1}', b'{"a":"x\\ny"}'])
    assert [json.loads(line) for line in text.splitlines()] == [{"a": 1}, {"a": "x\ny"}]
