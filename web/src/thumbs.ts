/** Thumbnails by row: asked for in batches, kept for a while, painted when they come. */

import type { Model } from "./model";
import type { Sheet } from "./source";

const SHEETS_KEPT = 300;
const BATCH = 96;

interface Spot {
  bitmap: ImageBitmap;
  slot: number;
}

export class Thumbs {
  private readonly spots = new Map<number, Spot>();
  private readonly sheets: Sheet[] = [];
  private readonly wanted = new Map<number, Set<HTMLCanvasElement>>();
  private readonly underway = new Set<number>();
  private timer = 0;

  constructor(private readonly model: Model) {}

  /** A small canvas with the sample's image, now or as soon as it comes. */
  canvas(row: number, className = "thumb"): HTMLCanvasElement {
    const canvas = document.createElement("canvas");
    canvas.className = className;
    this.paint(canvas, row);
    return canvas;
  }

  /** Show another sample on a canvas that is used again. */
  paint(canvas: HTMLCanvasElement, row: number): void {
    const size = this.model.info.thumb;
    canvas.dataset["row"] = String(row);
    const spot = this.spots.get(row);
    if (spot !== undefined) {
      this.copy(canvas, spot);
      return;
    }
    canvas.width = size;
    canvas.height = size;
    const waiting = this.wanted.get(row) ?? new Set();
    this.wanted.set(row, waiting.add(canvas));
    if (this.timer === 0) this.timer = window.setTimeout(() => this.fetch(), 24);
  }

  private copy(canvas: HTMLCanvasElement, { bitmap, slot }: Spot): void {
    const { thumb, sprite_columns: columns } = this.model.info;
    canvas.width = thumb;
    canvas.height = thumb;
    const left = (slot % columns) * thumb;
    const top = Math.floor(slot / columns) * thumb;
    canvas.getContext("2d")?.drawImage(bitmap, left, top, thumb, thumb, 0, 0, thumb, thumb);
    canvas.dataset["shown"] = canvas.dataset["row"] ?? "";
  }

  private fetch(): void {
    this.timer = 0;
    const rows: number[] = [];
    for (const [row, canvases] of this.wanted) {
      // Scrolled past before it was asked for.
      for (const canvas of canvases) if (canvas.dataset["row"] !== String(row)) canvases.delete(canvas);
      if (canvases.size === 0 && !this.underway.has(row)) this.wanted.delete(row);
      else if (!this.underway.has(row)) rows.push(row);
    }
    for (let begin = 0; begin < rows.length; begin += BATCH) void this.ask(rows.slice(begin, begin + BATCH));
  }

  private async ask(rows: number[]): Promise<void> {
    for (const row of rows) this.underway.add(row);
    try {
      for (const sheet of await this.model.source.sheet(rows)) this.keep(sheet);
    } catch {
      for (const row of rows) this.wanted.delete(row);
    } finally {
      for (const row of rows) this.underway.delete(row);
    }
  }

  private keep(sheet: Sheet): void {
    this.sheets.push(sheet);
    sheet.rows.forEach((row, n) => {
      const spot = { bitmap: sheet.bitmap, slot: sheet.slots[n] ?? 0 };
      this.spots.set(row, spot);
      for (const canvas of this.wanted.get(row) ?? []) {
        if (canvas.dataset["row"] === String(row)) this.copy(canvas, spot);
      }
      this.wanted.delete(row);
    });
    while (this.sheets.length > SHEETS_KEPT) {
      const oldest = this.sheets.shift();
      for (const row of oldest?.rows ?? []) {
        if (this.spots.get(row)?.bitmap === oldest?.bitmap) this.spots.delete(row);
      }
    }
  }
}
