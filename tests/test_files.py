"""Files of scores: what is read, and what is said of those that cannot be; results appear whole or not at all."""

import functools
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpconformal.files import read_scores, staged


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
}


@pytest.mark.parametrize("text", BAD_TEXT)
def test_bad_csv_is_named_by_line_and_column(text):
    with pytest.raises(ValueError, match=r"standard input") as raised:
        from_text(text)
    assert BAD_TEXT[text] in str(raised.value)


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
    with staged(folder) as stage:
        (stage / "a.txt").write_text("a")
        assert not (folder / "a.txt").exists()
    assert [file.name for file in folder.iterdir()] == ["a.txt"]

    def fail(where):
        with staged(where) as stage:
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
        with staged(folder) as stage:
            (stage / "a.txt").write_text("new")
            (stage / "b.txt").write_text("")

    with pytest.raises(ValueError, match="is a folder, in the place of a file"):
        write_both()
    assert (folder / "a.txt").read_text() == "a"
    assert not list(folder.glob(".unfinished*"))
