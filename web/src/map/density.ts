/** The density of the points: structure where a million points overlap. */

import type { PointIndex, Range } from "./pointIndex";
import { STATE_BYTES, type Frame, type Rgb } from "./renderer";

/** From map to cells of the picture, as a frame does to pixels. */
export type DensityView = Pick<Frame, "scale" | "left" | "top"> & { width: number; height: number };

/**
 * The RGBA pixels of the density. A cell has the mean colour of the visible points in it and in its
 * neighbours; its opacity grows with the logarithm of their number.
 */
export function density(index: PointIndex, state: Uint8Array, palette: Rgb[], ranges: Range[], view: DensityView): Uint8ClampedArray<ArrayBuffer> {
  const { width, height, scale, left, top } = view;
  const { xy } = index;
  // Per cell the sums of red, green and blue, and the number of points.
  const sums = new Float32Array(4 * width * height);
  for (const { start, count } of ranges) {
    for (let slot = start; slot < start + count; slot++) {
      const at = STATE_BYTES * slot;
      if (state[at + 3] === 0) continue;
      const column = Math.floor((xy[2 * slot] as number) * scale + left);
      const row = Math.floor(top - (xy[2 * slot + 1] as number) * scale);
      if (column < 0 || row < 0 || column >= width || row >= height) continue;
      const colour = palette[(state[at] as number) | ((state[at + 1] as number) << 8)];
      if (colour === undefined) continue;
      const cell = 4 * (row * width + column);
      (sums[cell] as number) += colour[0];
      (sums[cell + 1] as number) += colour[1];
      (sums[cell + 2] as number) += colour[2];
      (sums[cell + 3] as number) += 1;
    }
  }
  smooth(sums, 4);
  smooth(sums, 4 * width);
  let most = 1;
  for (let cell = 3; cell < sums.length; cell += 4) most = Math.max(most, sums[cell] as number);
  const rgba = new Uint8ClampedArray(sums.length);
  for (let cell = 0; cell < sums.length; cell += 4) {
    const count = sums[cell + 3] as number;
    if (count === 0) continue;
    for (let channel = 0; channel < 3; channel++) rgba[cell + channel] = (sums[cell + channel] as number) / count;
    rgba[cell + 3] = (255 * Math.log1p(count)) / Math.log1p(most);
  }
  return rgba;
}

/** Give each value a quarter of its two neighbours, `step` away, and half of itself. */
function smooth(values: Float32Array, step: number): void {
  const before = values.slice();
  for (let i = 0; i < values.length; i++) {
    values[i] = (before[i] as number) / 2 + ((before[i - step] ?? 0) + (before[i + step] ?? 0)) / 4;
  }
}
