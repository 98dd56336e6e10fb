"""More points than are prepared before the map is shown: it draws all the same, and answers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from page_eyes import counts, wait_for
from page_site import Opener

from thresher.app.desk import Desk
from thresher.app.serve import prepare
from thresher.data.selection import Selection
from thresher.data.sources.base import Block
from thresher.data.write import WriteOptions, write_pack
from thresher.select.cluster import ClassGraph

pytest_plugins = ("page_fixtures",)

MANY = 301_000


class Dots:
    """Images of four pixels, as many as one likes."""

    def __init__(self) -> None:
        self.name, self.classes = "dots", ["even", "odd"]
        self.image_shape: tuple[int, int, int] | None = (2, 2, 1)

    def key(self) -> str:
        return f"dots {MANY}"

    def chunks(self) -> list[str]:
        return ["all"]

    def read(self, chunk: str) -> Iterator[Block]:
        rows = np.arange(MANY)
        yield Block(
            ids=[f"dot/{row:06d}" for row in rows],
            labels=rows % 2,
            splits=["train"] * MANY,
            images=np.tile((rows % 251).astype(np.uint8)[:, None, None, None], (1, 2, 2, 1)),
        )


def test_three_hundred_thousand_points(tmp_path: Path, look: Opener) -> None:
    pack = write_pack(Dots(), tmp_path / "pack", WriteOptions(processes=1))
    random = np.random.default_rng(0)
    xy = random.normal(size=(MANY, 2)).astype(np.float32)
    Selection(
        ids=pack.ids.to_pylist(),
        labels=pack.labels,
        keep=random.random(MANY) > 0.1,
        score=random.random(MANY).astype(np.float32),
        reason=[""] * MANY,
        fingerprint=pack.fingerprint,
        x=xy[:, 0],
        y=xy[:, 1],
        meta={"data": str(pack.root)},
    ).save(tmp_path / "many.parquet")
    with prepare(Desk([tmp_path / "many.parquet"])).in_background() as url:
        page = look(url)
        assert page.locator(".map .empty").count() == 0
        assert sum(counts(page).values()) == MANY
        page.wait_for_selector(".knobs[data-ready]")
        graph = ClassGraph(xy.astype(np.float64), pack.labels, 5)
        page.fill("#share", "0.2")
        wait_for(page, "dropped", int(graph.noise(graph.eps_for_share(0.2)).sum()))

        page.wait_for_selector(".map[data-indexed]")
        box = page.locator(".map").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x - 30, y)
        page.mouse.move(x, y, steps=4)
        page.wait_for_selector(".card.hover .id")
        page.close()
