"""The HTTP interface as `docs/page.md` describes it, the command line, and the built bundle."""

import gzip
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pyarrow as pa
import pytest
from page_site import Made, Site
from PIL import Image

from thresher.app import static_files
from thresher.app.config import ServerConfig
from thresher.app.filter_preview import PreviewSettings
from thresher.app.map_layout import MapLayout, map_layout, neighbourhood_labels
from thresher.app.selection_view import SelectionView
from thresher.app.server import create_server
from thresher.app.workspace import Workspace, find_selections
from thresher.cli.view import ViewConfig, view
from thresher.data.overrides import OverrideLog
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.folder import Folder
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError
from thresher.paths import SelectionPaths

pytest_plugins = ("page_fixtures",)

ROOT = Path(__file__).parents[2]
BUNDLE_LIMIT = 300_000
LINES_LIMIT = 5_000


def client(site: Site) -> httpx.Client:
    headers = {"Authorization": f"Bearer {site.token}"}
    return httpx.Client(base_url=site.base, headers=headers, timeout=60, verify=False)


def table(answer: httpx.Response) -> tuple[pa.Table, dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    read = pa.ipc.open_stream(answer.content).read_all()
    return read, json.loads((read.schema.metadata or {}).get(b"thresher", b"{}"))


def test_points_travel_once_as_columns_and_changes_as_bitmasks(site: Site) -> None:
    selection = Selection.load(site.made.path)
    assert selection.x is not None
    assert selection.cluster is not None
    with client(site) as http:
        points, _ = table(http.get("/api/points"))
        assert points.column("id").to_pylist() == selection.ids
        assert np.array_equal(points.column("label").to_numpy(), selection.labels)
        assert np.array_equal(points.column("x").to_numpy(), selection.x)
        assert np.array_equal(points.column("cluster").to_numpy(), selection.cluster)
        around, _ = table(http.get("/api/places"))
        layout = MapLayout(selection.x, np.asarray(selection.y), "map")
        assert np.array_equal(
            around["place"].to_numpy(), neighbourhood_labels(layout, selection.labels)
        )
        answer = http.get("/api/state")
        state, meta = table(answer)
        assert state.schema.types == [pa.bool_(), pa.bool_()]
        assert np.array_equal(state.column("keep").to_numpy(), selection.keep)
        assert meta == {"version": 0, "undo": 0, "redo": 0}
        assert len(answer.content) < 4 * len(selection.ids) / 8 + 1000


def test_undo_in_one_window_restores_what_another_process_wrote_before(site: Site) -> None:
    selection = Selection.load(site.made.path)
    log = OverrideLog(SelectionPaths(site.made.path).overrides)
    log.decide(selection.ids[:2], False, "script", selection.keep[:2].tolist())
    with client(site) as http:
        body = {"ids": selection.ids[1:4], "keep": True, "reason": "looked at them"}
        state, meta = table(http.post("/api/overrides", json=body))
        assert state.column("overruled").to_numpy().sum() == 4
        assert meta["undo"] == 2
        detail = http.get(f"/api/sample/{selection.ids[1]}").json()
        assert detail["override"]["reason"] == "looked at them"
        state, _ = table(http.post("/api/undo"))
        assert not state.column("keep").to_numpy()[:2].any()
        entries = http.get("/api/log").json()["entries"]
        assert [entry["kind"] for entry in entries] == ["undo", "set", "set"]


def test_a_new_selection_carries_the_decisions(site: Site) -> None:
    selection = Selection.load(site.made.path)
    noise = site.made.graph.noise(site.made.graph.eps_for_share(0.3))
    id = selection.ids[int(np.flatnonzero(noise)[0])]
    with client(site) as http:
        table(http.post("/api/overrides", json={"ids": [id], "keep": True, "reason": "mine"}))
        answer = http.post("/api/use", json={"share": 0.3, "name": "third"})
        assert answer.status_code == 201
        assert http.get("/api/info").json()["selections"] == ["chosen", "third"]
        numbers = table(http.get("/api/compare", params={"with": "third"}))[1]
    written = Selection.load(answer.json()["path"])
    assert written.dropped == noise.sum() - 1
    assert written.keep[written.ids.index(id)]
    assert written.reason[written.ids.index(id)] == "override: mine"
    assert Selection.load(answer.json()["path"], overrides=False).dropped == noise.sum()
    kept = Selection.load(site.made.path).keep
    assert numbers["both_drop"] == (~kept & ~written.keep).sum()
    assert numbers["only_b_drops"] == (kept & ~written.keep).sum()
    assert sum(numbers[key] for key in numbers if "keep" in key or "drop" in key) == len(kept)


def test_random_and_score_previews_are_what_select_does(site: Site) -> None:
    from thresher.select.filters.random import RandomFilter

    selection = Selection.load(site.made.path)
    chosen = RandomFilter(drop=0.25, seed=3).fit(None, selection.labels)
    with client(site) as http:
        body = {"method": "random", "share": 0.25, "seed": 3}
        masks, meta = table(http.post("/api/preview", json=body))
        assert np.array_equal(masks.column("keep").to_numpy(), chosen.keep_)
        assert meta["dropped"] == 750
        masks, _ = table(http.post("/api/preview", json={"method": "score", "share": 0.1}))
        kept = masks.column("keep").to_numpy()
        assert selection.score[~kept].min() >= selection.score[kept].max()
        body = {"share": 0.1, "clusters": True}
        masks, meta = table(http.post("/api/preview", json=body))
        expected = site.made.graph.clusters(meta["eps"])
        assert np.array_equal(masks.column("cluster").to_numpy(), expected)


def test_feature_neighbours_are_the_most_alike(some_cifar: Made, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    selection = Selection.load(some_cifar.path)
    random = np.random.default_rng(0)
    features = random.normal(size=(len(selection.ids), 12)).astype(np.float32)
    shuffled = random.permutation(len(features))
    columns = {
        "id": [selection.ids[n] for n in shuffled],
        "features": list(features[shuffled]),
    }
    pq.write_table(pa.table(columns), tmp_path / "features.parquet")
    made = some_cifar.copy(tmp_path)
    sidecar = made.path.with_suffix(".json")
    meta = json.loads(sidecar.read_text())
    sidecar.write_text(json.dumps({**meta, "features": str(tmp_path / "features.parquet")}))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    likeness = unit @ unit[17]
    likeness[17] = -1
    expected = np.argsort(-likeness)[:5].tolist()
    with (
        create_server(Workspace([made.path])).in_background() as url,
        client(Site(url, made)) as http,
    ):
        assert http.get("/api/info").json()["features"] is True
        answer = http.get(f"/api/sample/{selection.ids[17]}", params={"neighbours": 5}).json()
    assert [one["row"] for one in answer["neighbours"]] == expected


@pytest.mark.parametrize("fault", ["damaged", "of other images"])
def test_features_that_cannot_be_used_are_mentioned_once(
    fault: str, some_cifar: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    features = tmp_path / "features.npy"
    made = some_cifar.copy(tmp_path)
    ids = Selection.load(made.path).ids
    if fault == "damaged":
        features.write_bytes(b"no array")
    else:
        np.save(features, np.zeros((len(ids), 2), np.float32))
    names = features.with_suffix(".ids.txt")
    names.write_text("\n".join(["another", "a third", *ids[2:]]))
    sidecar = made.path.with_suffix(".json")
    meta = json.loads(sidecar.read_text())
    sidecar.write_text(json.dumps({**meta, "features": str(features)}))
    with (
        create_server(Workspace([made.path])).in_background() as url,
        client(Site(url, made)) as http,
    ):
        for _ in range(2):
            answer = http.get(f"/api/sample/{ids[17]}", params={"neighbours": 5})
            assert "neighbours" not in answer.json()
    (said,) = [record.getMessage() for record in caplog.records if "not shown" in record.message]
    assert said.endswith("; similar images are not shown")
    assert str(features) in said
    assert ("has no features of 2 images" in said) == (fault != "damaged")


def test_places_are_the_majority_around() -> None:
    x = np.array([0, 0.1, 0.2, 5, 5.1, 5.2, 5.3], np.float32)
    labels = np.array([0, 0, 0, 1, 1, 1, 0])
    got = neighbourhood_labels(MapLayout(x, np.zeros_like(x), "map"), labels)
    assert got.dtype == np.int16
    # With only six others every neighbourhood is the whole map: ties and majorities decide.
    votes = [
        np.bincount(np.delete(labels, n), minlength=2) + 0.5 * np.eye(2)[labels[n]]
        for n in range(7)
    ]
    assert got.tolist() == [int(np.argmax(v)) for v in votes]


def test_places_of_many_are_found_as_by_counting_each_ones_neighbours() -> None:
    random = np.random.default_rng(0)
    xy = random.normal(size=(400, 2)).astype(np.float32)
    xy[:40] = xy[40:80]  # exact copies lie at the same coordinates, also under other labels
    labels = random.integers(0, 4, 400)
    found = neighbourhood_labels(MapLayout(xy[:, 0], xy[:, 1], "map"), labels)
    for row, own in enumerate(labels):
        away = np.hypot(*(xy.astype(np.float64) - xy[row]).T)
        away[row] = -1
        order = np.argsort(away)
        if away[order[10]] == away[order[11]]:
            continue  # either may be the tenth
        near = labels[order[1:11]]
        votes = {label: (near == label).sum() + 0.5 * (label == own) for label in range(4)}
        assert found[row] == max(votes, key=lambda label: votes[label])


def test_columns_without_a_map_put_unknown_scores_where_the_gallery_has_them() -> None:
    score = np.array([-3.0, -1.0, np.nan, np.inf, -2.0])
    selection = Selection(
        *([str(n) for n in range(5)], np.zeros(5, int), np.ones(5, bool), score, [""] * 5, "f")
    )
    assert np.argsort(map_layout(selection, 1).y, kind="stable").tolist() == [0, 2, 4, 1, 3]


def test_images_that_browsers_do_not_show_are_sent_as_png(tmp_path: Path) -> None:
    (tmp_path / "images" / "cell").mkdir(parents=True)
    random = np.random.default_rng(0)
    # Files of different sizes are stored as they are.
    pixels = [random.integers(0, 256, (side, 9, 3), np.uint8) for side in (5, 7)]
    for name, image in zip(("a #1%\n.tiff", "b.png"), pixels, strict=True):
        Image.fromarray(image).save(tmp_path / "images" / "cell" / name)
    options = WriteOptions(processes=1)
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack", options)
    ids = pack.ids.to_pylist()
    Selection(
        *(ids, pack.labels, np.ones(2, bool), np.zeros(2), ["", ""], pack.fingerprint),
        meta={"data": str(pack.root)},
    ).save(tmp_path / "s.parquet")
    view = SelectionView(tmp_path / "s.parquet")
    for id, image in zip(ids, pixels, strict=True):
        data, kind = view.image(id)
        assert kind == "image/png"
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), image)
    with (
        create_server(Workspace([view.path])).in_background() as url,
        httpx.Client(params={"token": url.partition("token=")[2]}) as http,
    ):
        place, id = f"{url.partition('?')[0]}api", quote(ids[0], safe="")
        assert http.get(f"{place}/sample/{id}").json()["id"] == ids[0]
        assert http.get(f"{place}/image/{id}").content == view.image(ids[0])[0]


def test_clusters_are_the_same_before_and_after_they_are_prepared(site: Site) -> None:
    """The first answer does not wait for the spanning tree that makes later ones fast."""
    graph, body = site.made.graph, {"share": 0.1, "clusters": True}
    wanted = graph.clusters(graph.eps_for_share(0.1))
    with create_server(workspace := Workspace([site.made.path])).in_background() as url:
        other = Site(url, site.made)
        with client(other) as http:
            first, _ = table(http.post("/api/preview", json=body))
            end = time.monotonic() + 60
            while not workspace.previewer().graph(graph.min_samples).prepared:
                assert time.monotonic() < end
                time.sleep(0.05)
            later, _ = table(http.post("/api/preview", json=body))
    assert np.array_equal(first["cluster"].to_numpy(), wanted)
    assert np.array_equal(later["cluster"].to_numpy(), wanted)


def test_a_selection_made_with_more_min_samples_than_the_slider_has_is_shown(
    some_cifar: Made, tmp_path: Path
) -> None:
    whole = Selection.load(some_cifar.path)
    meta = {**whole.meta, "settings": {"min_samples": 250}}
    replace(whole, meta=meta, path=None).save(tmp_path / "many.parquet")
    previewer = Workspace([tmp_path / "many.parquet"]).previewer()
    assert previewer.describe().min_samples == 250
    settings = PreviewSettings(share=0.1, min_samples=250)
    assert previewer.preview(settings).numbers.dropped > 0
    with pytest.raises(ThresherError, match=r"min_samples must be in \[1, 250\], got 251"):
        previewer.preview(PreviewSettings(min_samples=251))
    meta["settings"] = {"min_samples": "many"}  # the page said only that the server had failed
    replace(whole, meta=meta, path=None).save(tmp_path / "damaged.parquet")
    with pytest.raises(ThresherError, match="min_samples must be an integer, got 'many'"):
        Workspace([tmp_path / "damaged.parquet"]).previewer().describe()


def test_the_slider_does_not_start_at_an_eps_of_another_map(
    some_cifar: Made, tmp_path: Path
) -> None:
    """The map of `recursive` is that of its first round, its eps that of the last."""
    whole = Selection.load(some_cifar.path)
    meta = {**whole.meta, "method": "recursive", "eps": 123.0}
    replace(whole, meta=meta, path=None).save(tmp_path / "recursive.parquet")
    described = Workspace([tmp_path / "recursive.parquet"]).previewer().describe()
    assert described.eps == some_cifar.graph.eps_for_share(described.share)
    assert next(iter(described.methods)) == "score"


def test_a_selection_of_other_splits_is_refused(digits: Path, tmp_path: Path) -> None:
    """Its decisions were stored, but no other command takes a selection with test samples."""
    pack = Pack.open(digits)
    ids, labels = pack.ids.to_pylist(), pack.labels
    every = np.ones(len(ids), bool)
    Selection(ids, labels, every, labels, [""] * len(ids), pack.fingerprint).save(
        tmp_path / "all.parquet"
    )
    with pytest.raises(ThresherError, match="names validation or test samples of digits"):
        SelectionView(tmp_path / "all.parquet", pack)


def test_selections_of_a_folder_and_refusals(site: Site, tmp_path: Path) -> None:
    assert find_selections([site.made.path.parent]) == [site.made.path]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ThresherError, match="contains no selection"):
        find_selections([tmp_path / "empty"])
    with pytest.raises(ThresherError, match="no selection at"):
        Workspace([tmp_path / "none.parquet"]).view()


def test_a_selection_of_another_pack_is_refused(site: Site, digits: Path) -> None:
    from thresher.data.pack import Pack

    with pytest.raises(ThresherError, match="`data`"):
        Workspace([site.made.path], Pack.open(digits)).view()


@pytest.mark.slow  # starts a server
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_the_command_prints_an_address_serves_and_stops_cleanly(
    site: Site, number: int, code: int
) -> None:
    arguments = ["view", str(site.made.path), "--no-browser", "--port", "0", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "thresher", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", url)
        assert httpx.get(url).status_code == 200
        base = url.split("?")[0]
        assert httpx.get(f"{base}api/points").status_code == 401
        with httpx.stream("GET", url.replace("/?", "/api/events?")) as news:
            assert next(news.iter_text()).startswith("retry")
            process.send_signal(number)
            assert process.wait(20) == code
        assert process.stderr is not None
        assert process.stderr.read() == ("thresher: interrupted\n" if code else "")
    finally:
        process.kill()
        process.wait()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_page_opens_through_a_tunnel(site: Site, host: str) -> None:
    server = create_server(Workspace([site.made.path]), ServerConfig(host=host))
    command, address = server.tunnel
    port = server.socket.getsockname()[1]
    assert command == f"ssh -N -L {port}:127.0.0.1:{port} {socket.gethostname()}"
    with server.in_background():
        # What ssh forwards arrives from this machine, with the address that the browser knows.
        assert httpx.get(address).status_code == 200


def test_the_command_prints_the_tunnel(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    config = ViewConfig(selections=(site.made.path,), browser=False)
    assert "ssh " not in view(config).text
    assert "From your own machine: ssh -N -L " in view(replace(config, host="0.0.0.0")).text
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.2 5000 10.0.0.1 22")
    assert "ssh -N -L " in view(config).text


@pytest.mark.slow  # several commands
def test_the_command_refuses_in_one_sentence(thresher: Run, tmp_path: Path, site: Site) -> None:
    done = thresher("view", tmp_path / "none.parquet", "--no-browser")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    port = site.base.rsplit(":", 1)[1]
    done = thresher("view", site.made.path, "--no-browser", "--port", port)
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr


def test_the_bundle_is_small_and_holds_no_inline_script() -> None:
    files = static_files.static_files()
    page = files["index.html"].decode()
    assert static_files.LIVE_MARK in page
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""]
    assert "style=" not in page
    assert sum(len(gzip.compress(data, mtime=0)) for data in files.values()) < BUNDLE_LIMIT
    assert b"unsafe-eval" not in files["index.html"]


def test_the_source_of_the_page_is_short() -> None:
    web = ROOT / "web"
    files = [*web.glob("src/**/*.*"), *web.glob("*.ts"), *web.glob("*.html"), *web.glob("*.json")]
    lines = {
        str(file): len(file.read_text().splitlines())
        for file in files
        if file.name != "package-lock.json"
    }
    assert sum(lines.values()) < LINES_LIMIT


def test_the_lock_file_names_no_download_addresses() -> None:
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())
    assert lock["packages"]
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]
