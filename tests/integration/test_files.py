"""Files of scores: what is read, and what is said of those that cannot be; results appear whole or not at all."""

import csv
import functools
import io
import re
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpconformal.files import formats, open_scores, read_scores, staging_folder
from dpconformal.files import source as source_files
from dpconformal.files.formats import Text


def within(low, high):
    return lambda source, block: source.check_range(block, low, high, "widen it")


def from_text(text, **options):
    return read_scores("-", stdin=io.BytesIO(text.encode()), **options)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("score\n0.25\n0.5\n", {}),
        ("0.25\n0.5", {}),
        ("\ufeffday,Score\n1,0.25\n2,0.5\n", {}),
        ("\n\nday;value\n1;0.25\n\n2; 0.5 \n", {"column": "value"}),
        ("7\t0.25\n8\t0.5\n", {"column": "2"}),
        ("score\n0.25\n0.5\n\n\n", {}),
        ("\nscore\r\n0.25\r\n0.5\r\n", {}),
        ('note,score\n"two\nlines, quoted",0.25\nx,5e-1\n', {}),
        (",score\n0,0.25\n1,0.5\n", {}),
        ("2m,score\n1,0.25\n2,0.5\n", {}),
        ("day,1,7\n1,0.25,1\n2,0.5,1\n", {"column": "1"}),
        ("north,0.25\nnorth,0.5\n", {"column": "2"}),
        ("2024-01-01,0.25\n2024-01-02,0.5\n", {"column": "2"}),
    ],
)
def test_csv(text, options):
    found = from_text(text, **options)
    np.testing.assert_array_equal(found.scores[0], [0.25, 0.5])
    assert found.names == [""]
    assert found.rounds == 2


def test_series_keep_their_order_and_their_places(tmp_path):
    text = "store,score\nnorth,0.1\nsouth,0.2\nnorth,0.3\n\nsouth,9\nnorth,7\n"
    pa_table = pa.table({"store": ["north", "south", "north", "south", "north"], "score": [0.1, 0.2, 0.3, 9.0, 7.0]})
    pq.write_table(pa_table, tmp_path / "a.parquet")
    for read, place in (
        (functools.partial(from_text, text, batch="store"), "standard input, line 6, column 'score'"),
        (functools.partial(read_scores, tmp_path / "a.parquet", batch="store"), "a.parquet, row 4, column 'score'"),
    ):
        found = read(check=within(0.0, 10.0))
        assert found.names == ["north", "south"]
        np.testing.assert_array_equal(found.scores[0], [0.1, 0.3, 7])
        np.testing.assert_array_equal(found.scores[1], [0.2, 9])
        assert found.rounds == 3
        with pytest.raises(ValueError, match=r"score 9 lies outside \[0, 1\] \(1 more like it\); widen it") as raised:
            read(check=within(0.0, 1.0))
        assert place in str(raised.value)


def test_numpy_files(tmp_path):
    np.save(tmp_path / "one.npy", np.array([1, 0, 1]))
    np.save(tmp_path / "two.npy", np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(read_scores(tmp_path / "one.npy").scores[0], [1, 0, 1])
    found = read_scores(tmp_path / "two.npy")
    assert found.names == ["0", "1"]
    np.testing.assert_array_equal(found.scores[1], [3, 4, 5])
    with pytest.raises(ValueError, match=r"two\.npy, index \[1, 1\], array: score 4 lies outside \[0, 3\]"):
        read_scores(tmp_path / "two.npy", check=within(0.0, 3.0))


BAD_TEXT = {
    "": "standard input is empty",
    "\n \n": "standard input is empty",
    "score\n": "has a header and no rows",
    "a,a\n1,2\n": "line 1: two columns are called 'a'; rename one",
    "a,b\n1,2\n": "has the columns a, b: say which holds the scores with --column NAME",
    "\n\na,a\n1,2\n": "line 3: two columns are called 'a'",
    "score\n0.1\n\n0.2\n": "line 3, column 'score': nothing there",
    "0.1\n\n0.2\n": "line 2, column '1': nothing there",
    "  \nscore\n0.1\nx\n": "line 4, column 'score': 'x' is not a number",
    "score\n0.1\nabc\n": "line 3, column 'score': 'abc' is not a number; mend it, or choose another column",
    "score\n" + "0.5\n" * 1232 + "NaN\n": "line 1,234, column 'score': NaN is no score; drop the round or fill it in",
    "a,score\n1,0.1\n2,\n": "line 3, column 'score': nothing there",
    "a,score\n1,0.1\n2,inf\n": "line 3, column 'score': inf is no score",
    "a,score\n1,0.1\n2,1e999\n": "line 3, column 'score': 1e999 is no score",
    "a,score\n1,0.1\n2,0.2,0.3\n": "line 3: 3 columns, and the first line has 2",
    "score,a\n0.1,1\n0.2\n": "line 3: 1 columns, and the first line has 2",
    "score\n0.1\nTrue\n": "line 3, column 'score': 'True' is not a number",
    "score\n0.1\n1_0\n": "line 3, column 'score': '1_0' is not a number",
    'score\n"1,5"\n': "line 2, column 'score': '1,5' is not a number",
    'a,score\n"x\ny",0.2\nz,oops\n': "line 4, column 'score': 'oops'",
    # What is no name of a column is no header: the first score was dropped in silence.
    "NA\n0.5\n0.25\n": "line 1, column '1': 'NA' is not a number, and no name of a column, which begins with a letter",
    "0.5x\n0.5\n0.25\n": "line 1, column '1': '0.5x' is not a number",
    "\n1_000\n0.5\n0.25\n": "line 2, column '1': '1_000' is not a number",
    "None\n0.5\n": "line 1, column '1': 'None' is not a number",
    "-\n0.5\n": "line 1, column '1': '-' is not a number",
    "nan\n0.5\n": "line 1, column '1': nan is no score",
}


@pytest.mark.parametrize("text", BAD_TEXT)
def test_bad_csv_is_named_by_line_and_column(text):
    with pytest.raises(ValueError, match=r"standard input") as raised:
        from_text(text)
    assert BAD_TEXT[text] in str(raised.value)


def rows_of(**columns):
    """Write columns as CSV, beside scores."""
    table = {**columns, "score": [f"{k % 10 / 10}" for k in range(len(next(iter(columns.values()))))]}
    return "\n".join([",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]) + "\n"


DAYS = [f"2024-01-{k:02d}" for k in range(1, 13)]
SEVERAL = {
    "stacked by store": (
        {"store": ["a"] * 6 + ["b"] * 6, "day": DAYS[:6] * 2},
        "line 8, column 'day': 2024-01-01 comes after 2024-01-06; if there are several series, tell them apart with "
        "--batch store; if there is one, sort the rows, or pass --one-series",
    ),
    "sorted by day": (
        {"day": [day for day in DAYS[:6] for _ in "ab"], "store": ["a", "b"] * 6},
        "column 'store': its values differ among rows of the same time",
    ),
    "sorted by day, with gaps": (
        {"day": [day for day in DAYS[:6] for _ in "ab"][:11], "store": list("abbaabbaabb"[:11])},
        "column 'store': its values differ among rows of the same time",
    ),
    "rounds that start anew": ({"round": [*range(6), *range(6)]}, "line 8, column 'round': 0 comes after 5"),
    "times with a zone": (
        {"made": [f"{day}T10:00:00Z" for day in DAYS[::-1]]},
        "column 'made': 2024-01-11",
    ),
    "newest first": ({"day": DAYS[::-1]}, "line 3, column 'day': 2024-01-11 comes after 2024-01-12"),
    "blocks": ({"store": [7] * 4 + [3] * 5 + [12] * 3}, "column 'store': its values come in blocks"),
    "turns": ({"store": ["a", "b", "c"] * 4}, "column 'store': its values take turns"),
}
ONE = {
    "time goes forward": {"day": DAYS, "store": ["a"] * 6 + ["b"] * 6},
    "one of two times goes forward": {"made": DAYS, "due": DAYS[6:] + DAYS[:6]},
    "a regime that returns": {"regime": list("aaabbbaaabbb")},
    "weekdays": {"weekday": [0, 1, 2, 3, 4, 5] * 2, "name": ["Mon", "Tue", "Wed"] * 4},
    "years": {"year": [2019] * 6 + [2020] * 6},
    "numbered rows": {"": list(range(12)), "note": [f"n{k}" for k in range(12)]},
    "measurements": {"x": [0.5, 1, 1, 2] * 3, "y": ["1.5", "2.5"] * 6},
    "many rows a day": {"day": [DAYS[0]] * 6 + [DAYS[1]] * 6, "regime": list("aabbabaabbab")},
    "a day twice, once": {"day": DAYS[:6] + DAYS[5:11], "regime": list("aaabbbaaabbb")},
    "one store": {"store": ["a"] * 12},
}


@pytest.mark.parametrize("rows", [None, 5])
@pytest.mark.parametrize("name", SEVERAL)
def test_several_series_without_a_batch_are_refused(name, rows, monkeypatch, tmp_path):
    """Found: series were read one after the other, or mixed, as one. Blocks of any size say the same."""
    columns, message = SEVERAL[name]
    text = rows_of(**columns)
    if rows:
        monkeypatch.setattr(formats, "BYTES", 60)
        monkeypatch.setattr(formats, "BATCH_ROWS", rows)
    with pytest.raises(ValueError, match=re.escape(message)):
        from_text(text, lone=True)
    table = pa.csv.read_csv(io.BytesIO(text.encode()))
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=re.escape(message[message.index("column") :])):
        read_scores(tmp_path / "a.parquet", lone=True)
    assert len(from_text(text).scores[0]) == len(table)


@pytest.mark.parametrize("rows", [None, 5])
@pytest.mark.parametrize("name", ONE)
def test_one_series_is_read_as_one(name, rows, monkeypatch, tmp_path):
    text = rows_of(**ONE[name])
    if rows:
        monkeypatch.setattr(formats, "BYTES", 60)
        monkeypatch.setattr(formats, "BATCH_ROWS", rows)
    assert len(from_text(text, lone=True).scores[0]) == 12
    pq.write_table(pa.csv.read_csv(io.BytesIO(text.encode())), tmp_path / "a.parquet")
    assert len(read_scores(tmp_path / "a.parquet", lone=True).scores[0]) == 12


def test_more_series_than_are_remembered(monkeypatch):
    monkeypatch.setattr(source_files, "MOST", 2)
    with pytest.raises(ValueError, match=r"column 'store': its values come in blocks"):
        from_text(rows_of(store=[k // 2 for k in range(12)]), lone=True)
    assert len(from_text(rows_of(store=[0, 1, 2, 3, 4, 5] * 2), lone=True).scores[0]) == 12


def test_columns_that_are_not_there():
    with pytest.raises(ValueError, match=r"--column scor: standard input has no such column; did you mean score\?"):
        from_text("a,score\n1,2\n", column="scor")
    with pytest.raises(ValueError, match=r"--batch shop: standard input has no such column; it has a, score"):
        from_text("a,score\n1,2\n", batch="shop")
    with pytest.raises(ValueError, match=r"line 3, column 'a': no series; fill it in"):
        from_text("a,score\nx,0.1\n ,0.2\n", batch="a")


def test_bad_files(tmp_path):
    def refused(name, content, message, **options):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as raised:
            read_scores(path, **options)
        assert str(path) in str(raised.value)

    refused("none.csv", None, "does not exist: check the name")
    refused("empty.csv", b"", "is empty")
    refused("empty.npy", b"", "is empty")
    refused("bytes.csv", b"\xff\xfe\x00\x01", "is no text in UTF-8")
    refused("nul.csv", b"sco\x00re\n1\n", "is no text")
    refused("late.csv", b"score\n" + b"0.1\n" * 10_000 + b"\xff\n", "line 10,002 is no text in UTF-8; mend the line")
    refused("junk.npy", b"not numpy", "cannot be read as a NumPy file")
    refused("junk.parquet", b"not parquet", "cannot be read as Parquet")
    with pytest.raises(ValueError, match="is a folder"):
        read_scores(tmp_path)
    np.save(tmp_path / "o.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    refused("o.npy", None, "cannot be read as a NumPy file")  # nothing in a file can run code
    np.save(tmp_path / "c.npy", np.ones(3, complex))
    refused("c.npy", None, r"holds complex128 of shape \(3,\)")
    np.save(tmp_path / "z.npy", np.ones((2, 0)))
    refused("z.npy", None, "holds no scores")
    np.save(tmp_path / "n.npy", np.array([[1.0, 2.0], [np.nan, np.nan]]))
    refused("n.npy", None, r"index \[1, 0\], array: nan is no score \(1 more like it\)")
    refused("n.npy", None, "--column x: .* is an array without columns", column="x")
    pq.write_table(pa.table({"score": ["a"]}), tmp_path / "t.parquet")
    refused("t.parquet", None, "column 'score' holds string, not numbers")
    both = pa.table([[0.1, 0.2], [0.1, 0.2], [[1], [2]]], names=["a", "a", "deep"])
    pq.write_table(both, tmp_path / "twice.parquet")
    refused("twice.parquet", None, "two columns are called 'a'", column="a")
    deep = pa.table({"score": [0.1, 0.2], "list": [[1], [2]], "blank": ["x", " "], "nan": [1.0, np.nan]})
    pq.write_table(deep, tmp_path / "deep.parquet")
    refused("deep.parquet", None, "column 'list' holds list.*, not names of series", column="score", batch="list")
    for name in ("blank", "nan"):
        refused("deep.parquet", None, f"row 2, column '{name}': no series", column="score", batch=name)
    with pytest.raises(ValueError, match="--batch score is the column of the scores"):
        read_scores(tmp_path / "deep.parquet", column="score", batch="score")
    np.savez(tmp_path / "many.npz", a=np.ones(3))
    (tmp_path / "many.npz").rename(tmp_path / "many.npy")
    refused("many.npy", None, "is an archive of arrays")
    pq.write_table(pa.table({"score": [0.1, None]}), tmp_path / "m.parquet")
    refused("m.parquet", None, "row 2, column 'score': nan is no score")
    pq.write_table(pa.table({"score": pa.array([], pa.float64())}), tmp_path / "e.parquet")
    refused("e.parquet", None, "has no rows")
    pq.write_table(pa.table({"score": [0.1, 0.2], "s": ["a", None]}), tmp_path / "b.parquet")
    refused("b.parquet", None, "row 2, column 's': no series", batch="s")


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=1, max_size=30))
def test_what_is_written_is_read(numbers):
    found = from_text("score\n" + "\n".join(map(repr, numbers)) + "\n")
    np.testing.assert_array_equal(found.scores[0], numbers)


@given(st.text(max_size=60))
def test_no_text_is_read_wrongly(text):
    """Either numbers that Python reads the same, or an error that names the source."""
    found = complaint = None
    try:
        found = from_text("score\n" + text)
    except ValueError as error:
        complaint = str(error)
    if found is None:
        assert "standard input" in complaint
    else:
        lines = [line for line in io.StringIO(text, newline=None).read().split("\n") if line]
        np.testing.assert_array_equal(found.scores[0], [float(line.strip('"')) for line in lines])


def test_results_appear_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "new" / "results"
    with staging_folder(folder) as stage:
        (stage / "a.txt").write_text("a")
        assert not (folder / "a.txt").exists()
    assert [file.name for file in folder.iterdir()] == ["a.txt"]

    def fail(where):
        with staging_folder(where) as stage:
            (stage / "a.txt").write_text("half")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        fail(folder)
    assert (folder / "a.txt").read_text() == "a"
    assert len(list(folder.iterdir())) == 1
    with pytest.raises(RuntimeError):
        fail(tmp_path / "never" / "made")
    assert not (tmp_path / "never").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written to"):
        fail(tmp_path / "file" / "below")
    (folder / "b.txt").mkdir()
    (folder / "b.txt" / "x").write_text("")

    def write_both():
        with staging_folder(folder) as stage:
            (stage / "a.txt").write_text("new")
            (stage / "b.txt").write_text("")

    with pytest.raises(ValueError, match="is a folder, in the place of a file"):
        write_both()
    assert (folder / "a.txt").read_text() == "a"
    assert not list(folder.glob(".unfinished*"))


# Would find that a name is looked for among all those before it: 60,000 columns took a minute.
@pytest.mark.parametrize("last", ["c0", "c60000"])
def test_many_columns_take_no_longer_each(last, tmp_path):
    names = [f"c{k}" for k in range(60_000)] + [last]
    header, start = ",".join(names), time.process_time()
    text = Text("many", lambda: io.BytesIO(f"{header}\n".encode()))
    if last == "c0":
        with pytest.raises(ValueError, match="line 1: two columns are called 'c0'; rename one"):
            text.names()
    else:
        assert text.names() == names
    assert time.process_time() - start < 5


# The same of Parquet, where each look at a name made a list of all names: 8 s.
def test_many_columns_of_parquet_take_no_longer_each(tmp_path):
    pq.write_table(pa.table({f"c{k}": pa.array([0.5]) for k in range(15_000)}), tmp_path / "many.parquet")
    start = time.process_time()
    open_scores(tmp_path / "many.parquet", column="c7", lone=True)
    assert time.process_time() - start < 4


# Would find scores that come out shifted: a group that claims to have no rows was passed over, and Arrow read it.
def test_damaged_parquet_is_read_as_arrow_reads_it_or_refused(tmp_path):
    path, read = tmp_path / "damaged.parquet", []
    pq.write_table(pa.table({"score": [1.0, 2.0, 3.0]}), path, row_group_size=1, compression=None)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for k in range(footer, len(data) - 8):
        if data[k] == 2:  # 1, as Thrift writes it: among others the numbers of rows become 0
            path.write_bytes(data[:k] + b"\0" + data[k + 1 :])
            try:
                read.append(read_scores(path).scores[0].tolist())
            except ValueError:
                continue
            assert read[-1] == pq.ParquetFile(path).read()["score"].to_pylist()
    assert [1.0, 2.0] in read


# Would find that a column, which is one series or none that could be learned from, is read as a million series.
def test_a_column_vector_is_refused_before_it_is_read(tmp_path):
    np.save(tmp_path / "column.npy", np.full((2**20, 1), 0.5))
    start = time.process_time()
    with pytest.raises(ValueError, match=r"has shape \(1048576, 1\), a column: of one series save array\[:, 0\]"):
        read_scores(tmp_path / "column.npy")
    assert time.process_time() - start < 1


# Would find that short series are read one at a time, each with a call of its own.
def test_short_series_of_an_array_are_read_many_at_a_time(tmp_path):
    np.save(tmp_path / "short.npy", np.arange(2.0**15).reshape(-1, 2))
    blocks = list(open_scores(tmp_path / "short.npy"))
    assert len(blocks) == 1
    assert read_scores(tmp_path / "short.npy").scores[-1].tolist() == [2**15 - 2, 2**15 - 1]


# Would find that the first line is blamed for quotes that it does not have, and that later fields have a limit.
def test_long_fields(monkeypatch):
    with pytest.raises(
        ValueError, match=r"line 2, column 1: 3,000,000 characters, and 1,000 is the limit in the first"
    ):
        from_text("\n" + "a" * 3_000_000 + "\n0.5\n")
    long = "z" * 200_000
    monkeypatch.setattr(formats, "BYTES", 2**16)
    found = from_text(f'note,score\n"{long}",0.25\n"{long}\n",0.5\n', column="score")
    np.testing.assert_array_equal(found.scores[0], [0.25, 0.5])
    with pytest.raises(ValueError, match="line 4, column 'score': 'x' is not a number"):
        from_text(f'note,score\n{long},0.25\n"{long}\n",x\n', column="score")


# Would find that who leaves first takes the limit away from the others, and who leaves last keeps it for good.
def test_the_limit_of_fields_is_given_back_in_any_order():
    text = Text("long", lambda: io.BytesIO(b"a,b\n1,2\n" + b"3," + b"4" * 200_000 + b"\n"))
    before = csv.field_size_limit()
    first, second = text._rows(), text._rows()
    next(first), next(second)
    first.close()
    assert len(next(second)[1][1]) == 200_000
    second.close()
    assert csv.field_size_limit() == before
    rounds = [lambda: [len(list(text._rows())) for _ in range(20)]] * 4
    with ThreadPoolExecutor(4) as threads:
        assert [each.result() for each in [threads.submit(work) for work in rounds]] == [[2] * 20] * 4
    assert csv.field_size_limit() == before


# Would find lines without an end that are gathered in memory and looked through again and again, and a first row that
# is lost because the rest of a long blank line counted as a line.
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('score,note\n0.5,"' + "a" * 200, "no row ends in the 64 bytes after byte 11; close the quotes of a long line"),
        ("score\n" + "\n" * 200 + "0.5\n", "no row ends in the 64 bytes after byte 6; .* or take out blank ones"),
        ("\n" + " " * 70 + "\nscore\n0.5\n0.25\n", "line 2 has more than 64 characters: is it a table"),
        ("s" * 70 + "\n0.5\n", "line 1 has more than 64 characters: is it a table"),
    ],
)
def test_lines_that_do_not_end(text, complaint, monkeypatch):
    monkeypatch.setattr(formats, "BYTES", 16)
    monkeypatch.setattr(formats, "LONGEST_LINE", 64)
    with pytest.raises(ValueError, match=f"standard input.*{complaint}"):
        from_text(text, column="score" if "score" in text else None)


# Would find that a byte within a letter, which stands for the end of a line in another alphabet, moves the cuts of a
# file into its quotes.
def test_letters_are_no_ends_of_lines(monkeypatch):
    rows = 'Å"x,0.25,"two\nlines"\n' * 8
    monkeypatch.setattr(formats, "BYTES", 16)
    assert from_text(f"note,score,text\n{rows}", column="score").scores[0].tolist() == [0.25] * 8
