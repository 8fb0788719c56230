"""Zarr stores and NetCDF files of strangers, and damaged ones: refused by name, and nothing in them runs."""

import gc
import json
import os
import pathlib
import pickle

import h5py
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from commands import run_command

import dpconformal as dpc
from dpconformal.cli import panel as command


class Payload:
    """What a pickle may do."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


def scores(series=6, rounds=4):
    values = np.random.default_rng(2).random((series, rounds))
    names = np.array([f"s{k}" for k in range(series)], object)
    return xr.DataArray(values, {"series": names, "time": np.arange(rounds)}, ["series", "time"], name="score")


def store(path, number=2, **encoding):
    chunks = {"score": {"chunks": (2, 4)} | encoding}
    scores().to_dataset().to_zarr(path, zarr_format=number, encoding=chunks, consolidated=False)
    return path


def change(path, **entries):
    """Change entries of metadata."""
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Run the command in an empty folder: its code, and what it complained of."""
    monkeypatch.chdir(tmp_path)

    def words(*given):
        code, _, err = run_command(monkeypatch, capfd, "panel", *given)
        gc.collect()  # when asyncio complains of errors that nobody took
        return code, err + capfd.readouterr().err

    return words


def whole(path):
    return dpc.panel.open_panel(path).compute(scheduler="synchronous")


@pytest.mark.parametrize("array", ["score", "series", "time"])
@pytest.mark.parametrize("dtype", ["|O", "<f8"])
@pytest.mark.parametrize("filters", [["pickle"], ["vlen-utf8", "pickle"], ["pickle", "vlen-utf8"]])
def test_a_pickle_in_a_store_is_never_loaded(array, dtype, filters, tmp_path):
    """The codec was reached: only a dependency's own refusal stood between it and the payload."""
    path, bad = store(tmp_path / "a.zarr"), tmp_path / "bad"
    change(path / array / ".zarray", dtype=dtype, filters=[{"id": name} for name in filters], compressor=None)
    for chunk in (path / array).glob("[0-9]*"):
        chunk.write_bytes(pickle.dumps(Payload(str(bad))))
    with pytest.raises(
        ValueError, match=f"a.zarr: array {array} is refused: codec 'pickle' is not one of vlen-utf8, blosc"
    ):
        whole(path)
    assert not bad.exists()


OTHER = {  # entries of .zarray, and of zarr.json
    "objects": (2, {"dtype": "|O", "filters": None}, "dtype '.O' holds objects: text has the filter vlen-utf8"),
    "records": (2, {"dtype": [["a", "<f8"]]}, "is neither numbers nor times nor text"),
    "raw": (2, {"dtype": "|V8"}, "is neither numbers nor times nor text"),
    "text twice": (2, {"dtype": "|O", "filters": [{"id": "vlen-utf8"}] * 2}, "codec vlen-utf8 is not the first"),
    "unknown": (2, {"filters": [{"id": "delta", "dtype": "<f8"}]}, "codec 'delta' is not one of"),
    "no codec": (2, {"filters": ["pickle"]}, "codec 'pickle' is not one of"),
    "chunks": (2, {"chunks": [0, 4]}, r"chunks = \[0, 4\]"),
    "large": (2, {"shape": [2**34, 4], "chunks": [2**34, 4]}, "a chunk of 549,755,813,888 bytes: at most"),
    "many": (2, {"shape": [2**30, 4], "chunks": [1, 4]}, "it is in 1,073,741,824 chunks: store it in"),
    "endless": (2, {"shape": [2**60, 2**60]}, "numbers: at most"),
    "separator": (2, {"dimension_separator": "/../"}, "dimension_separator = '/../'"),
    "v3 pickle": (3, {"codecs": [{"name": "numcodecs.pickle"}]}, "codec 'numcodecs.pickle' is not one of"),
    "v3 shards": (3, {"codecs": [{"name": "sharding_indexed"}]}, "codec 'sharding_indexed' is not one of"),
    "v3 objects": (3, {"data_type": "object"}, "data_type 'object' is neither numbers nor times nor text"),
    "v3 type": (3, {"data_type": {"name": "structured", "configuration": {}}}, "is neither numbers nor times nor text"),
    "v3 text": (3, {"data_type": "string"}, "data_type 'string' is not in codec vlen-utf8"),
    "v3 keys": (3, {"chunk_key_encoding": {"name": "fanout"}}, "store it in regular chunks"),
    "v3 dims": (3, {"dimension_names": ["series", "time", "x"]}, "array score is refused: .*dimension"),
}


@pytest.mark.parametrize("name", OTHER)
def test_arrays_that_are_not_read(name, tmp_path):
    """These reached the decoders, or would make work for years out of a few bytes."""
    number, entries, message = OTHER[name]
    path = store(tmp_path / "a.zarr", number)
    change(path / "score" / (".zarray" if number == 2 else "zarr.json"), **entries)
    with pytest.raises(ValueError, match=message):
        dpc.panel.open_panel(path)


def test_copies_of_metadata_are_not_believed(tmp_path):
    """Else what was checked would not be what is used."""
    path, bad = tmp_path / "a.zarr", tmp_path / "bad"
    scores().to_dataset().to_zarr(path, zarr_format=2, consolidated=True)
    copy = json.loads((path / ".zmetadata").read_text())
    copy["metadata"]["score/.zarray"] |= {"dtype": "|O", "filters": [{"id": "pickle"}], "compressor": None}
    (path / ".zmetadata").write_text(json.dumps(copy))
    np.testing.assert_array_equal(whole(path), scores())
    assert not bad.exists()
    (path / "zarr.json").write_text("{}")
    with pytest.raises(ValueError, match=r"a\.zarr has both \.zgroup and zarr\.json"):
        dpc.panel.open_panel(path)


def test_nothing_outside_of_a_store_is_read(tmp_path):
    """A link may lead to another's file, and a pipe to nowhere: the command would wait forever."""
    (tmp_path / "secret").write_bytes(bytes(64))
    for target, message in (
        (tmp_path / "secret", "it is a link to .*secret, outside of the store"),
        (None, "it is no file"),
    ):
        for name in ("score/1.0", "score/.zarray", "time/0", ".zgroup"):
            path = store(tmp_path / f"{target is None}{name.replace('/', '')}.zarr")
            (path / name).unlink()
            os.mkfifo(path / name) if target is None else (path / name).symlink_to(target)
            with pytest.raises(ValueError, match=f"{name} cannot be read: {message}"):
                whole(path)
    path = store(tmp_path / "folder.zarr")
    (path / "score").rename(tmp_path / "score")
    (path / "score").symlink_to(tmp_path / "score")
    with pytest.raises(ValueError, match="outside of the store"):
        whole(path)


@pytest.mark.parametrize("where", ["score/1.0", "series/0"])
def test_lengths_that_a_decoder_would_trust(where, tmp_path):
    """Blosc reads beyond its input, and ends the process; text makes room for as many labels as it claims."""
    path = store(tmp_path / "a.zarr", compressors=[numcodecs.Blosc("lz4")])
    data = bytearray((path / where).read_bytes())
    if where.startswith("series"):
        data = bytearray(numcodecs.Blosc().encode((2**30).to_bytes(4, "little") + bytes(40)))
        (path / where).write_bytes(data)
        message = "chunk series/0 cannot be read: it is no text of 6 labels"
    else:
        (path / where).write_bytes(data[:-9])
        message = r"chunk score/1\.0 cannot be read: it is no Blosc frame of"
    with pytest.raises(ValueError, match=message):
        whole(path)


@pytest.mark.parametrize("number", [2, 3])
def test_stores_of_others_are_read_with_and_without_edges(number, tmp_path):
    """What is allowed is read as xarray reads it, also where chunks reach beyond the end."""
    array = scores(5, 7).assign_coords(
        week=("time", np.arange(7) // 3), day=("time", np.arange(7).astype("M8[D]").astype("M8[ns]"))
    )
    kinds = [None, numcodecs.Zstd(), numcodecs.GZip(), numcodecs.BZ2(), numcodecs.Blosc("zstd", shuffle=2)]
    if number == 3:
        kinds = [
            None,
            zarr.codecs.ZstdCodec(),
            zarr.codecs.GzipCodec(),
            (zarr.codecs.BloscCodec(), zarr.codecs.Crc32cCodec()),
        ]
    for k, kind in enumerate(kinds):
        path = tmp_path / f"{k}.zarr"
        array.to_dataset().to_zarr(
            path, zarr_format=number, encoding={"score": {"chunks": (2, 3), "compressors": kind}}, consolidated=False
        )
        found = dpc.panel.open_panel(path)
        assert found.chunks is not None
        xr.testing.assert_equal(
            found.compute(scheduler="synchronous"), xr.open_zarr(path, consolidated=False).score.compute()
        )
        np.testing.assert_array_equal(found.isel(series=3).values, array.isel(series=3).values)


def flipped(file):
    """Flip a bit of one byte in the middle of a file, then put it back."""
    data = file.read_bytes()
    for at in {0, len(data) // 2, len(data) - 1}:
        spoilt = bytearray(data)
        spoilt[at] ^= 16
        file.write_bytes(spoilt)
        yield at
    file.write_bytes(data)


def chunk_files(path):
    return [file for file in path.rglob("*") if file.is_file() and file.name[0] not in ".z"]


def read(path, arrays):
    for name in arrays:
        time = "series" if name == "rounds" else "time" if name in ("score", "thresholds") else "level"
        dpc.panel.open_panel(path, time=time, score=name).compute(scheduler="synchronous")


def test_a_flipped_byte_in_any_chunk_that_we_wrote_is_refused(tmp_path):
    """Without a checksum some were read as other numbers."""
    panel = dpc.replay_panel(scores().chunk(series=2), dpc.Exact(), [0.5, 0.9])
    dpc.panel.save_panel(panel, tmp_path / "panel.zarr")
    dpc.panel.save_panel(scores().chunk(series=2).to_dataset(), tmp_path / "scores.zarr")
    for name, arrays in (("panel.zarr", [*panel.data_vars]), ("scores.zarr", ["score"])):
        for file in chunk_files(tmp_path / name):
            about = json.loads((file.parent / ".zarray").read_text())
            assert (about["filters"][-1], about["compressor"]) == ({"id": "crc32c"}, None)
            for _ in flipped(file):
                at = f"{name}: chunk {file.parent.name}/{file.name} cannot be read: Stored and computed crc32c checksum"
                with pytest.raises(ValueError, match=at):
                    read(tmp_path / name, arrays)
    assert len(chunk_files(tmp_path / "panel.zarr")) == 3 * 6 + 3


def test_a_flipped_byte_in_netcdf_that_we_wrote_is_refused(tmp_path):
    """HDF5 checks nothing by itself."""
    path = tmp_path / "panel.nc"
    dpc.panel.save_panel(dpc.replay_panel(scores().chunk(series=2), dpc.Exact(), [0.5, 0.9]), path)
    with h5py.File(path) as file:
        data = file["thresholds"]
        assert data.chunks == (2, 4, 2)
        places = [data.id.get_chunk_info(k).byte_offset for k in range(3)]
        assert all(file[name].fletcher32 for name in ("coverage", "loss", "rounds", "time", "level"))
    clean = path.read_bytes()
    for number, place in enumerate(places):
        spoilt = bytearray(clean)
        spoilt[place + 8] ^= 1
        path = tmp_path / f"{number}.nc"  # HDF5 remembers files that are open
        path.write_bytes(spoilt)
        with pytest.raises(ValueError, match=rf"{number}\.nc: chunk {number}\.0\.0 of thresholds cannot be read"):
            dpc.panel.open_panel(path, score="thresholds").compute(scheduler="synchronous")


def netcdf(path):
    scores().to_dataset().to_netcdf(path, engine="h5netcdf")
    return path


def virtual(file):
    layout = h5py.VirtualLayout((6, 4), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "score", (6, 4))
    file.create_virtual_dataset("score", layout)


ELSEWHERE = "its numbers are in other files"
NEITHER = "neither numbers nor text"
VARIABLES = {
    "external link": (lambda f: f.__setitem__("score", h5py.ExternalLink("other.h5", "score")), "it is a link"),
    "soft link": (lambda f: f.__setitem__("score", h5py.SoftLink("/time")), "it is a link"),
    "virtual": (virtual, ELSEWHERE),
    "external": (lambda f: f.create_dataset("score", (6, 4), "f8", external=[("raw", 0, 192)]), ELSEWHERE),
    "objects": (lambda f: f.create_dataset("score", (6, 4), h5py.vlen_dtype("f8")), NEITHER),
    "references": (lambda f: f.create_dataset("score", (6, 4), h5py.ref_dtype), NEITHER),
    "records": (lambda f: f.create_dataset("score", (6, 4), [("a", "f8")]), NEITHER),
    "choices": (lambda f: f.create_dataset("score", (6, 4), h5py.enum_dtype({"a": 1})), NEITHER),
    "filter": (lambda f: f.create_dataset("score", (6, 4), "f8", compression="lzf"), "HDF5 filter 32000 is not one"),
    "empty": (lambda f: f.create_dataset("score", data=h5py.Empty("f8")), "it has no shape"),
    "endless": (lambda f: f.create_dataset("score", (2**41, 4), "f8"), "numbers: at most"),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_that_are_not_read(name, tmp_path, monkeypatch):
    """HDF5 would open other files of this user, and filters are programs that it looks for."""
    monkeypatch.chdir(tmp_path)
    make, message = VARIABLES[name]
    with h5py.File("other.h5", "w") as other:
        other["score"] = np.zeros((6, 4))
    pathlib.Path("raw").write_bytes(bytes(6 * 4 * 8))
    scores().to_dataset().to_netcdf("a.nc", engine="h5netcdf")
    with h5py.File("a.nc", "r+") as file:
        del file["score"]
        make(file)
    with pytest.raises(ValueError, match=rf"a\.nc: variable score is refused: .*{message}"):
        dpc.panel.open_panel("a.nc")


def test_what_is_no_netcdf(tmp_path):
    (tmp_path / "a.nc").write_bytes(b"CDF\1 and so on")
    with pytest.raises(ValueError, match=r"a\.nc: cannot be opened: "):
        dpc.panel.open_panel(tmp_path / "a.nc")
    (tmp_path / "b.nc").mkdir()
    with pytest.raises(ValueError, match=r"b\.nc is no file"):
        dpc.panel.open_panel(tmp_path / "b.nc")


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("what", ["score", "series", "metadata", "fill_value"])
def test_the_command_ends_in_one_line(number, what, run, tmp_path):
    """It ended in 350 to 430 lines of traceback."""
    path, between = store(tmp_path / "a.zarr", number), "." if number == 2 else "/"
    key = {"score": between.join("10"), "series": "0"}.get(what)
    if what == "fill_value":
        for name in ("score", "series", "time"):
            change(path / name / (".zarray" if number == 2 else "zarr.json"), fill_value={"a": 1})
        said = f"{path}: array score is refused: "
    elif what == "metadata":
        name = "score/.zarray" if number == 2 else "score/zarr.json"
        (path / name).write_text("[" * 100_000)
        said = f"{path}: {name} cannot be read: "
    else:
        key = f"{what}/{'c/' * (number == 3)}{key}"
        data = (path / key).read_bytes()
        (path / key).write_bytes(data[: len(data) // 2])
        said = f"{path}: chunk {key} cannot be read: "
    code, complaint = run("a.zarr")
    assert code == 2
    assert complaint.startswith(f"error: {said}")
    assert complaint.count("\n") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.zarr"]


def test_damage_to_unfinished_work_is_refused(run, tmp_path, monkeypatch):
    """What an interrupted run left had no checksums: its numbers were believed."""
    store(tmp_path / "a.zarr")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_move_result", interrupted)
    assert run("a.zarr", "--levels", "0.5")[0] == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (work,) = (tmp_path / ".panel.zarr/.unfinished").glob("work-*/panel-*.zarr")
    file = work / "coverage/0.0"
    data = bytearray(file.read_bytes())
    data[-6] ^= 1
    file.write_bytes(data)
    code, complaint = run("a.zarr", "--levels", "0.5", "--resume")
    assert code == 2
    assert "chunk coverage/0.0 cannot be read: Stored and computed crc32c" in complaint


def test_text_beside_the_scores(tmp_path):
    """Objects have no size by which to choose chunks: opening ended in Dask's own words."""
    where = np.array([["x", "yy", "", "ü"]] * 6, object)
    array = scores().assign_coords(where=(("series", "time"), where))
    array.to_dataset().to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    with h5py.File(tmp_path / "a.nc", "r+") as file:
        file["where"].attrs["missing_value"] = "x"
    assert (whole(tmp_path / "a.nc")["where"].values[:, 1:] == where[:, 1:]).all()
