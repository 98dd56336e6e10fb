/** The samples as points: where they stand, in which order they are drawn, how large they are. */

import type { Model } from "../model";
import type { StateTexture } from "./renderer";

const MARGIN = 0.92;

/** The numbers below n, each once, far from their neighbours. */
export function scattered(n: number): number[] {
  // A step without a common divisor with n meets them all; near the golden section, evenly.
  let step = Math.max(1, Math.round(n * 0.6180339887498949));
  while (divisor(step, n) !== 1) step++;
  const order = new Array<number>(n);
  for (let i = 0, at = 0; i < n; i++, at = (at + step) % n) order[i] = at;
  return order;
}

function divisor(a: number, b: number): number {
  return b === 0 ? a : divisor(b, a % b);
}

/** What the card is sent: places now, colours and states when they are known. */
export function stateOf(points: number[][]): StateTexture {
  const side = Math.max(2, Math.ceil(Math.sqrt(points.length)));
  const data = new Float32Array(side * side * 4);
  points.forEach(([x, y], n) => {
    data[4 * n] = x ?? 0;
    data[4 * n + 1] = y ?? 0;
  });
  return { data, side };
}

/** Pixels across, so that many points do not cover one another. */
export function pointSize(n: number): number {
  if (n > 500_000) return 1;
  if (n > 100_000) return 1.5;
  if (n > 20_000) return 2.4;
  if (n > 4_000) return 4;
  return n > 300 ? 6 : 9;
}

/** Coordinates in [-1, 1], both axes by the same factor: distances on a map mean something. */
export function scaled(model: Model): number[][] {
  const { x, y, n } = model;
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let i = 0; i < n; i++) {
    x0 = Math.min(x0, x[i] ?? 0);
    x1 = Math.max(x1, x[i] ?? 0);
    y0 = Math.min(y0, y[i] ?? 0);
    y1 = Math.max(y1, y[i] ?? 0);
  }
  const span = Math.max(x1 - x0, y1 - y0);
  const factor = span > 0 ? (2 * MARGIN) / span : 1;
  const points: number[][] = new Array<number[]>(n);
  for (let i = 0; i < n; i++) {
    points[i] = [((x[i] ?? 0) - (x0 + x1) / 2) * factor, ((y[i] ?? 0) - (y0 + y1) / 2) * factor];
  }
  return points;
}
