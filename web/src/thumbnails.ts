/** Thumbnails by row: requested in batches, cached, painted when they arrive. */

import { classColour } from "./colours";
import { button } from "./dom";
import type { Model } from "./model";
import type { ThumbnailSheet } from "./dataSource";

const BATCH = 96;
const CACHED = 300 * BATCH;

type Location = Pick<ThumbnailSheet, "bitmap"> & { slot: number };

export class Thumbnails {
  private readonly locations = new Map<number, Location>();
  private readonly waiting = new Map<number, Set<HTMLCanvasElement>>();
  private readonly requested = new Set<number>();
  private timer = 0;

  constructor(private readonly model: Model) {}

  /** A canvas with the sample's image, now or as soon as it arrives. */
  canvas(row: number, className = "thumb"): HTMLCanvasElement {
    const canvas = document.createElement("canvas");
    canvas.className = className;
    this.paint(canvas, row);
    return canvas;
  }

  /** A small button with the sample's image that focuses the sample. */
  button(row: number, tabindex = 0): HTMLButtonElement {
    const { model } = this;
    const label = model.describe(row);
    const className = model.kept(row) ? "neighbour" : "neighbour dropped";
    const tile = button(className, () => model.setFocus(row), { title: label, "aria-label": label, tabindex }, this.canvas(row));
    tile.style.setProperty("--class", classColour(model.label[row] ?? 0, model.info.classes.length));
    return tile;
  }

  /** Show a sample on an existing canvas. */
  paint(canvas: HTMLCanvasElement, row: number): void {
    canvas.dataset["row"] = String(row);
    delete canvas.dataset["shown"];
    // This also clears the canvas.
    canvas.width = canvas.height = this.model.info.thumb;
    const location = this.locations.get(row);
    if (location !== undefined) return this.copy(canvas, location);
    this.waiting.set(row, (this.waiting.get(row) ?? new Set()).add(canvas));
    if (this.timer === 0) this.timer = window.setTimeout(() => this.requestAll(), 24);
  }

  private copy(canvas: HTMLCanvasElement, { bitmap, slot }: Location): void {
    const { thumb, sprite_columns: columns } = this.model.info;
    const left = (slot % columns) * thumb;
    const top = Math.floor(slot / columns) * thumb;
    canvas.getContext("2d")?.drawImage(bitmap, left, top, thumb, thumb, 0, 0, thumb, thumb);
    canvas.dataset["shown"] = canvas.dataset["row"] ?? "";
  }

  private requestAll(): void {
    this.timer = 0;
    const rows: number[] = [];
    for (const [row, canvases] of this.waiting) {
      // Scrolled past before the request.
      for (const canvas of canvases) if (canvas.dataset["row"] !== String(row)) canvases.delete(canvas);
      if (canvases.size === 0 && !this.requested.has(row)) this.waiting.delete(row);
      else if (!this.requested.has(row)) rows.push(row);
    }
    for (let begin = 0; begin < rows.length; begin += BATCH) void this.request(rows.slice(begin, begin + BATCH));
  }

  private async request(rows: number[]): Promise<void> {
    for (const row of rows) this.requested.add(row);
    try {
      for (const sheet of await this.model.source.thumbnails(rows)) this.store(sheet);
    } catch {
      for (const row of rows) this.waiting.delete(row);
    } finally {
      for (const row of rows) this.requested.delete(row);
    }
  }

  private store(sheet: ThumbnailSheet): void {
    sheet.rows.forEach((row, n) => {
      const location = { bitmap: sheet.bitmap, slot: sheet.slots[n] ?? 0 };
      this.locations.set(row, location);
      for (const canvas of this.waiting.get(row) ?? []) {
        if (canvas.dataset["row"] === String(row)) this.copy(canvas, location);
      }
      this.waiting.delete(row);
    });
    // The oldest come first.
    for (const row of this.locations.keys()) {
      if (this.locations.size <= CACHED) break;
      this.locations.delete(row);
    }
  }
}
