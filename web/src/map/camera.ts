/** The visible part of the map. Screen coordinates are CSS pixels from the top left corner. */

import type { Box } from "./pointIndex";

const MIN_ZOOM = 0.4;
const MAX_ZOOM = 2000;

/** Covered pixels at the edges. */
export type Insets = Record<"top" | "right" | "bottom" | "left", number>;

export interface View {
  x: number;
  y: number;
  scale: number;
}

export class Camera implements View {
  /** The point of the map at the centre of the screen. */
  x = 0;
  y = 0;
  /** Pixels per unit of the map. */
  scale = 1;
  width = 1;
  height = 1;
  /** The scale at which the whole map fits. */
  fittedScale = 1;

  /** The scale relative to the one at which the whole map fits. */
  get zoom(): number {
    return this.scale / this.fittedScale;
  }

  toScreen(x: number, y: number): [number, number] {
    return [this.width / 2 + (x - this.x) * this.scale, this.height / 2 - (y - this.y) * this.scale];
  }

  toMap(left: number, top: number): [number, number] {
    return [this.x + (left - this.width / 2) / this.scale, this.y - (top - this.height / 2) / this.scale];
  }

  /** The visible part of the map with `margin` pixels more on each side. */
  box(margin = 0): Box {
    const [x0, y1] = this.toMap(-margin, -margin);
    const [x1, y0] = this.toMap(this.width + margin, this.height + margin);
    return { x0, y0, x1, y1 };
  }

  panBy(dx: number, dy: number): void {
    this.x -= dx / this.scale;
    this.y += dy / this.scale;
  }

  /** Scale by `factor` around (left, top). */
  zoomAt(left: number, top: number, factor: number): void {
    const [x, y] = this.toMap(left, top);
    this.scale = Math.max(MIN_ZOOM * this.fittedScale, Math.min(MAX_ZOOM * this.fittedScale, this.scale * factor));
    const [nowX, nowY] = this.toMap(left, top);
    this.x += x - nowX;
    this.y += y - nowY;
  }

  /** The view that shows `box` inside the insets. */
  viewOf(box: Box, insets: Insets): View {
    const width = Math.max(1, this.width - insets.left - insets.right);
    const height = Math.max(1, this.height - insets.top - insets.bottom);
    const scale = Math.min(width / Math.max(box.x1 - box.x0, 1e-6), height / Math.max(box.y1 - box.y0, 1e-6));
    // A single point would otherwise be infinitely large.
    const bounded = Math.min(scale, Math.min(width, height) / 2 / 1e-3);
    return {
      x: (box.x0 + box.x1) / 2 + (insets.right - insets.left) / 2 / bounded,
      y: (box.y0 + box.y1) / 2 + (insets.top - insets.bottom) / 2 / bounded,
      scale: bounded,
    };
  }

  get view(): View {
    return { x: this.x, y: this.y, scale: this.scale };
  }

  set(view: View): void {
    Object.assign(this, view);
  }
}

/** A view between two others; the scale changes geometrically. */
export function interpolate(from: View, to: View, share: number): View {
  const scale = from.scale * (to.scale / from.scale) ** share;
  // The centre moves with the scale, so that points move in straight lines.
  const moved = Math.abs(to.scale - from.scale) < 1e-9 * from.scale ? share : (1 / from.scale - 1 / scale) / (1 / from.scale - 1 / to.scale);
  return { x: from.x + (to.x - from.x) * moved, y: from.y + (to.y - from.y) * moved, scale };
}
