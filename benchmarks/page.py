"""The page under load: loading, panning and moving a slider at 50,000 and 1,000,000 samples.

A made-up map over a real pack (images repeat beyond its size), in Chromium with whatever graphics
it has; on a machine without a GPU that is a software renderer, which draws many times slower.

    python -m benchmarks.page [--samples 50000 1000000] [--pack digits]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import machine
from thresher.app.desk import Desk
from thresher.app.serve import prepare
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.base import Block
from thresher.data.write import WriteOptions, write_pack
from thresher.paths import write_text

if TYPE_CHECKING:
    from playwright.sync_api import Page

RESULT = Path(__file__).parent / "results" / "page.md"
SHARES = (0.05, 0.1, 0.15, 0.2, 0.08, 0.12)

FRAMES = """async ([steps]) => {
  const canvas = document.querySelector('canvas.points');
  const box = canvas.getBoundingClientRect();
  const at = (dx, kind, target) => target.dispatchEvent(new MouseEvent(kind, {bubbles: true,
    clientX: box.x + box.width / 2 + dx, clientY: box.y + box.height / 2, buttons: 1}));
  at(0, 'mousedown', canvas);
  const begun = performance.now();
  for (let n = 0; n < steps; n++) {
    at(4 * Math.sin(n), 'mousemove', window);
    at(4 * Math.sin(n), 'mousemove', canvas);
    await new Promise(done => requestAnimationFrame(done));
  }
  const spent = performance.now() - begun;
  at(0, 'mouseup', window);
  return 1000 * steps / spent;
}"""


class Repeated:
    """Images of a pack over and over, under ids of their own."""

    def __init__(self, pack: Pack, samples: int) -> None:
        self.pack, self.samples = pack, samples
        self.name, self.classes = f"{pack.name}-repeated", pack.classes
        self.image_shape = pack.image_shape

    def key(self) -> str:
        return f"{self.pack.fingerprint} × {self.samples}"

    def chunks(self) -> list[str]:
        return [str(begin) for begin in range(0, self.samples, 100_000)]

    def read(self, chunk: str) -> Any:
        rows = np.arange(int(chunk), min(int(chunk) + 100_000, self.samples))
        train = self.pack.indices("train")
        from_rows = train[rows % len(train)]
        yield Block(
            ids=[f"sample/{row:07d}" for row in rows],
            labels=self.pack.labels[from_rows],
            splits=["train"] * len(rows),
            images=self.pack.images(from_rows),
        )


def made_up(pack: Pack, path: Path) -> None:
    """A map like t-SNE's: every class a few blobs, some points between them."""
    labels = pack.labels
    random = np.random.default_rng(0)
    blobs = random.normal(scale=30, size=(len(pack.classes), 4, 2))
    xy = blobs[labels, random.integers(0, 4, len(labels))]
    xy = xy + random.standard_t(3, size=xy.shape) * 3
    Selection(
        ids=pack.ids.to_pylist(),
        labels=labels,
        keep=random.random(len(labels)) > 0.06,
        score=random.random(len(labels)).astype(np.float32),
        reason=[""] * len(labels),
        fingerprint=pack.fingerprint,
        x=xy[:, 0].astype(np.float32),
        y=xy[:, 1].astype(np.float32),
        meta={"data": str(pack.root)},
    ).save(path)


def measure(page: "Page", url: str, samples: int) -> dict[str, float]:
    begun = time.perf_counter()
    page.goto(url)
    page.wait_for_selector(".map[data-drawn]", timeout=300_000)
    load = time.perf_counter() - begun
    page.wait_for_timeout(1000)
    frames = page.evaluate(FRAMES, [60 if samples <= 100_000 else 15])
    for share in SHARES:
        seen = page.evaluate("performance.getEntriesByName('knob').length")
        page.fill("#share", str(share))
        while page.evaluate("performance.getEntriesByName('knob').length") == seen:
            page.wait_for_timeout(20)
    entries = page.evaluate("performance.getEntriesByName('knob').map(e => e.duration)")
    server = page.evaluate(
        """async shares => {
          const token = new URL(location.href).searchParams.get('token');
          const times = [];
          for (const share of shares) {
            const begun = performance.now();
            const answer = await fetch('./api/preview', {method: 'POST',
              headers: {Authorization: `Bearer ${token}`}, body: JSON.stringify({share})});
            await answer.arrayBuffer();
            times.push(performance.now() - begun);
          }
          return times;
        }""",
        list(SHARES),
    )
    return {
        "load": load,
        "frames": frames,
        "answer": statistics.median(server),
        "slider": statistics.median(entries[1:]),
        "slider_best": min(entries),
    }


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[50_000, 1_000_000])
    parser.add_argument("--pack", default="digits")
    options = parser.parse_args()
    rows = []
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        for samples in options.samples:
            source = Repeated(Pack.open(options.pack), samples)
            pack = write_pack(source, Path(folder) / f"pack-{samples}", WriteOptions(processes=1))
            path = Path(folder) / f"s{samples}.parquet"
            made_up(pack, path)
            with prepare(Desk([path])).in_background() as url:
                page = browser.new_page(viewport={"width": 1280, "height": 720})
                page.set_default_timeout(300_000)
                found = measure(page, url, samples)
                renderer = page.evaluate(
                    """() => { const gl = document.createElement('canvas').getContext('webgl');
                    const ask = gl.getExtension('WEBGL_debug_renderer_info');
                    return gl.getParameter(ask ? ask.UNMASKED_RENDERER_WEBGL : gl.RENDERER); }"""
                )
                page.close()
            print(json.dumps({"samples": samples, **found}), flush=True)
            rows.append(
                f"| {samples:,} | {found['load']:.1f} s | {found['frames']:.0f} | "
                f"{found['answer']:.0f} ms | {found['slider']:.0f} ms | "
                f"{found['slider_best']:.0f} ms |"
            )
        version = browser.version
        browser.close()
    lines = [
        "# The page under load",
        "",
        machine.markdown(("numpy", "pyarrow", "starlette", "uvicorn", "playwright")),
        f"- browser: Chromium {version}, 1280 × 720",
        f"- graphics: {renderer}",
        f"- load average at the start and the end: {before:.1f}, {os.getloadavg()[0]:.1f}",
        "",
        "| samples | load to first map | frames/s while panning | server's answer to a slider | "
        "slider to new map, median | least |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        "Load: from the address to the drawn map, all points included. Slider: from the moment the",
        "request is sent to the frame that shows the answer. With a software renderer the drawing",
        "is most of it; the server's answer is the part that does not depend on the graphics.",
    ]
    write_text(RESULT, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
