/**
 * Points in drawing order, with a grid over them for culling, picking and the lasso.
 *
 * The points are split into layers, each a fair sample of all of them and twice as large as the one
 * before, so that drawing the first layers shows the whole map in less time. Inside a layer they
 * are sorted by the cells of a square grid, so that what lies in a rectangle is a few ranges.
 */

import { extent } from "../sorting";

const SIDE = 64;
const CELLS = SIDE * SIDE;
const FIRST_LAYER = 50_000;
const NONE = -1;

export type Box = Record<"x0" | "y0" | "x1" | "y1", number>;

/** Consecutive slots. */
export interface Range {
  start: number;
  count: number;
}

/** Columns c0 to c1 and lines r0 to r1 of cells, all included. */
type CellBox = Record<"c0" | "r0" | "c1" | "r1", number>;

export class PointIndex {
  readonly n: number;
  /** The row of each slot; a slot is a position in drawing order. */
  readonly rows: Int32Array;
  /** The slot of each row. */
  readonly slots: Int32Array;
  /** x and y of each slot, scaled by one factor so that the longer side spans [-1, 1]. */
  readonly xy: Float32Array;
  readonly bounds: Box;
  /** Per layer the first slot of each cell, and the end of the last. */
  private readonly layers: Int32Array[];

  constructor(x: Float32Array, y: Float32Array) {
    this.n = x.length;
    const scaled = normalised(x, y);
    this.bounds = scaled.bounds;
    const shares = layerShares(this.n);
    const key = new Uint32Array(this.n);
    const starts = new Int32Array(shares.length * CELLS + 1);
    for (let row = 0; row < this.n; row++) {
      const cell = line(scaled.xy[2 * row + 1] as number) * SIDE + line(scaled.xy[2 * row] as number);
      const at = layerOf(row, shares) * CELLS + cell;
      key[row] = at;
      (starts[at + 1] as number) += 1;
    }
    for (let at = 0; at < starts.length - 1; at++) (starts[at + 1] as number) += starts[at] as number;
    this.layers = shares.map((_, layer) => starts.slice(layer * CELLS, (layer + 1) * CELLS + 1));
    this.rows = new Int32Array(this.n);
    this.slots = new Int32Array(this.n);
    this.xy = new Float32Array(2 * this.n);
    for (let row = 0; row < this.n; row++) {
      const at = key[row] as number;
      const slot = starts[at] as number;
      starts[at] = slot + 1;
      this.rows[slot] = row;
      this.slots[row] = slot;
      this.xy[2 * slot] = scaled.xy[2 * row] as number;
      this.xy[2 * slot + 1] = scaled.xy[2 * row + 1] as number;
    }
  }

  position(row: number): [number, number] {
    const slot = this.slots[row] ?? 0;
    return [this.xy[2 * slot] ?? 0, this.xy[2 * slot + 1] ?? 0];
  }

  /**
   * The slots to draw for a rectangle, as ranges in drawing order. At most `limit` points, in whole
   * layers and never fewer than the first layer. A range may reach beyond the rectangle.
   */
  ranges(box: Box, limit = Infinity): Range[] {
    const cells = cellsOf(box);
    const ranges: Range[] = [];
    let total = 0;
    for (const starts of this.layers) {
      const added = layerRanges(starts, cells);
      const count = added.reduce((sum, range) => sum + range.count, 0);
      if (total > 0 && total + count > limit) break;
      total += count;
      for (const range of added) {
        const last = ranges[ranges.length - 1];
        if (last !== undefined && last.start + last.count === range.start) last.count += range.count;
        else ranges.push(range);
      }
    }
    return ranges;
  }

  /** The row of the visible point nearest to (x, y) within `radius`; -1 if there is none. */
  nearest(x: number, y: number, radius: number, visible: (slot: number) => boolean): number {
    let best = radius * radius;
    let row = NONE;
    this.visit({ x0: x - radius, y0: y - radius, x1: x + radius, y1: y + radius }, (start, end) => {
      for (let slot = start; slot < end; slot++) {
        const dx = (this.xy[2 * slot] as number) - x;
        const dy = (this.xy[2 * slot + 1] as number) - y;
        const distance = dx * dx + dy * dy;
        // Of equal distances the last one drawn, which is on top.
        if (distance <= best && visible(slot)) {
          best = distance;
          row = this.rows[slot] ?? NONE;
        }
      }
    });
    return row;
  }

  /** The rows of visible points inside a polygon (x0, y0, x1, y1, …; even-odd rule), ascending. */
  inside(polygon: ArrayLike<number>, visible: (slot: number) => boolean): Int32Array {
    const matches: number[] = [];
    let edges: Edge[] = [];
    let edgesOf = NONE;
    const all = edgesOfPolygon(polygon);
    this.visit(boxOf(all), (start, end, r) => {
      if (r !== edgesOf) {
        // Only edges that cross this line of cells can count for its points.
        const [low, high] = [below(r), below(r + 1)];
        edges = all.filter((edge) => Math.min(edge.y0, edge.y1) <= high && Math.max(edge.y0, edge.y1) >= low);
        edgesOf = r;
      }
      for (let slot = start; slot < end; slot++) {
        const x = this.xy[2 * slot] as number;
        const y = this.xy[2 * slot + 1] as number;
        if (crossings(edges, x, y) % 2 === 1 && visible(slot)) matches.push(this.rows[slot] ?? 0);
      }
    });
    return Int32Array.from(matches).sort();
  }

  /** Call `action` with the slots [start, end) of each cell that meets the box, and its line. */
  private visit(box: Box, action: (start: number, end: number, r: number) => void): void {
    const { c0, r0, c1, r1 } = cellsOf(box);
    for (let r = r0; r <= r1; r++) {
      for (const starts of this.layers) {
        const [start, end] = [starts[r * SIDE + c0] ?? 0, starts[r * SIDE + c1 + 1] ?? 0];
        if (end > start) action(start, end, r);
      }
    }
  }
}

/** Scale both axes by one factor, so that distances stay comparable. */
function normalised(x: Float32Array, y: Float32Array): { xy: Float32Array; bounds: Box } {
  const n = x.length;
  const [[x0, x1], [y0, y1]] = [extent(x), extent(y)];
  const span = Math.max(x1 - x0, y1 - y0);
  const factor = span > 0 ? 2 / span : 1;
  const [cx, cy] = n > 0 ? [(x0 + x1) / 2, (y0 + y1) / 2] : [0, 0];
  const xy = new Float32Array(2 * n);
  for (let i = 0; i < n; i++) {
    xy[2 * i] = ((x[i] as number) - cx) * factor;
    xy[2 * i + 1] = ((y[i] as number) - cy) * factor;
  }
  const [w, h] = n > 0 ? [((x1 - x0) * factor) / 2, ((y1 - y0) * factor) / 2] : [1, 1];
  return { xy, bounds: { x0: -w, y0: -h, x1: w, y1: h } };
}

/** The share of all points in each layer and those before it. */
function layerShares(n: number): number[] {
  const shares: number[] = [];
  for (let size = FIRST_LAYER; size < n; size *= 2) shares.push(size / n);
  return [...shares, 1];
}

function layerOf(row: number, shares: number[]): number {
  const share = hash(row) / 2 ** 32;
  let layer = 0;
  while (share >= (shares[layer] ?? 1)) layer++;
  return layer;
}

/** 32 mixed bits: every layer is a fair sample, even if the rows have a regular order. */
function hash(row: number): number {
  let mixed = Math.imul(row ^ (row >>> 16), 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  return (mixed ^ (mixed >>> 16)) >>> 0;
}

/** The column or line of cells that contains a coordinate. */
function line(value: number): number {
  return Math.max(0, Math.min(SIDE - 1, Math.floor(((value + 1) / 2) * SIDE)));
}

/** The lower edge of a line of cells; the outermost lines reach to infinity. */
function below(r: number): number {
  if (r <= 0) return -Infinity;
  return r >= SIDE ? Infinity : (2 * r) / SIDE - 1;
}

function cellsOf(box: Box): CellBox {
  return { c0: line(box.x0), r0: line(box.y0), c1: line(box.x1), r1: line(box.y1) };
}

function layerRanges(starts: Int32Array, { c0, r0, c1, r1 }: CellBox): Range[] {
  const range = (from: number, to: number): Range => {
    const start = starts[from] ?? 0;
    return { start, count: (starts[to] ?? 0) - start };
  };
  // If most columns are visible, a few long ranges draw faster than many exact ones.
  if (2 * (c1 - c0 + 1) > SIDE) return [range(r0 * SIDE, (r1 + 1) * SIDE)];
  const ranges: Range[] = [];
  for (let r = r0; r <= r1; r++) {
    const one = range(r * SIDE + c0, r * SIDE + c1 + 1);
    if (one.count > 0) ranges.push(one);
  }
  return ranges;
}

/** An edge from (x0, y0) to (x1, y1). */
type Edge = Box;

function edgesOfPolygon(polygon: ArrayLike<number>): Edge[] {
  const at = (i: number): number => polygon[i % polygon.length] as number;
  return Array.from({ length: polygon.length >> 1 }, (_, i) => ({ x0: at(2 * i), y0: at(2 * i + 1), x1: at(2 * i + 2), y1: at(2 * i + 3) }));
}

/** How many edges a ray from (x, y) to the right crosses. */
function crossings(edges: Edge[], x: number, y: number): number {
  let count = 0;
  for (const { x0, y0, x1, y1 } of edges) {
    if (y0 > y !== y1 > y && x < ((x1 - x0) * (y - y0)) / (y1 - y0) + x0) count++;
  }
  return count;
}

function boxOf(edges: Edge[]): Box {
  const [xs, ys] = [edges.map((edge) => edge.x0), edges.map((edge) => edge.y0)];
  return { x0: Math.min(...xs), y0: Math.min(...ys), x1: Math.max(...xs), y1: Math.max(...ys) };
}
