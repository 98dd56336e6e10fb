import { describe, expect, it } from "vitest";
import { PointIndex, type Box, type Range } from "../src/map/pointIndex";
import { cloud, random } from "./samples";

const all = (): boolean => true;
const everything: Box = { x0: -2, y0: -2, x1: 2, y1: 2 };

function slotsOf(ranges: Range[]): number[] {
  return ranges.flatMap(({ start, count }) => Array.from({ length: count }, (_, i) => start + i));
}

describe("order", () => {
  it("holds every row once, with its coordinates", () => {
    const { x, y } = cloud(60_000);
    const index = new PointIndex(x, y);
    expect(Array.from(index.rows).sort((a, b) => a - b)).toEqual(Array.from({ length: 60_000 }, (_, i) => i));
    const scale = 2 / (Math.max(...x) - Math.min(...x));
    for (const row of [0, 17, 97, 59_999]) {
      expect(index.rows[index.slots[row] ?? -1]).toBe(row);
      const [px, py] = index.position(row);
      const [qx, qy] = index.position(0);
      expect(px - qx).toBeCloseTo(((x[row] ?? 0) - (x[0] ?? 0)) * scale, 5);
      expect(py - qy).toBeCloseTo(((y[row] ?? 0) - (y[0] ?? 0)) * scale, 5);
    }
  });

  it("spans [-1, 1] along the longer side and keeps the proportions", () => {
    const index = new PointIndex(Float32Array.of(0, 10, 5), Float32Array.of(0, 1, 2));
    expect(index.bounds).toEqual({ x0: -1, y0: expect.closeTo(-0.2, 6), x1: 1, y1: expect.closeTo(0.2, 6) });
  });

  it("takes no points, one point and equal points", () => {
    expect(new PointIndex(new Float32Array(), new Float32Array()).ranges(everything)).toEqual([{ start: 0, count: 0 }]);
    const one = new PointIndex(Float32Array.of(7), Float32Array.of(-3));
    expect(one.position(0)).toEqual([0, 0]);
    expect(one.nearest(0.01, 0, 0.1, all)).toBe(0);
    const same = new PointIndex(new Float32Array(50).fill(3), new Float32Array(50).fill(3));
    expect(same.inside([-1, -1, 1, -1, 1, 1, -1, 1], all)).toHaveLength(50);
  });
});

describe("culling", () => {
  const { x, y } = cloud(200_000, 3);
  const index = new PointIndex(x, y);

  it("draws everything in one range when everything is in sight", () => {
    expect(index.ranges(everything)).toEqual([{ start: 0, count: 200_000 }]);
  });

  it.each([
    { x0: -0.1, y0: -0.05, x1: 0.1, y1: 0.05 },
    { x0: -0.6, y0: -0.02, x1: 0.55, y1: 0.3 },
    { x0: 0.7, y0: -1, x1: 0.9, y1: 1 },
  ])("draws all that is in $x0 … $x1 × $y0 … $y1, each once, and leaves out most of the rest", (box) => {
    const drawn = slotsOf(index.ranges(box));
    expect(new Set(drawn).size).toBe(drawn.length);
    const seen = new Set(drawn);
    let inSight = 0;
    for (let slot = 0; slot < index.n; slot++) {
      const [px, py] = [index.xy[2 * slot] ?? 0, index.xy[2 * slot + 1] ?? 0];
      if (px < box.x0 || px > box.x1 || py < box.y0 || py > box.y1) continue;
      inSight++;
      if (!seen.has(slot)) expect.fail(`slot ${slot} is in sight but not drawn`);
    }
    expect(inSight).toBeGreaterThan(0);
    expect(drawn.length).toBeLessThan(200_000);
  });

  it("draws nothing beyond the map but its outermost cells", () => {
    expect(slotsOf(index.ranges({ x0: 5, y0: 5, x1: 6, y1: 6 })).length).toBeLessThan(100);
  });

  it("keeps to a limit with a fair sample", () => {
    const some = slotsOf(index.ranges(everything, 60_000));
    expect(some.length).toBeGreaterThan(45_000);
    expect(some.length).toBeLessThanOrEqual(60_000);
    const share = some.length / index.n;
    // Rows often come in a regular order, such as one of each class in turn.
    for (const period of [7, 10, 89]) {
      const turn = some.filter((slot) => (index.rows[slot] ?? 0) % period === 3).length;
      expect(turn / (index.n / period) / share).toBeGreaterThan(0.9);
      expect(turn / (index.n / period) / share).toBeLessThan(1.1);
    }
    // Every part of the map keeps about the same share of its points.
    const across = (slot: number): number => index.xy[2 * slot] ?? 0;
    const order = slotsOf(index.ranges(everything)).sort((a, b) => across(a) - across(b));
    const drawn = new Set(some);
    for (let part = 0; part < 8; part++) {
      const slots = order.slice((part * index.n) / 8, ((part + 1) * index.n) / 8);
      const kept = slots.filter((slot) => drawn.has(slot)).length / slots.length;
      expect(kept / share).toBeGreaterThan(0.95);
      expect(kept / share).toBeLessThan(1.05);
    }
  });

  it("never draws less than the first layer, and more of it when one zooms in", () => {
    expect(slotsOf(index.ranges(everything, 10)).length).toBeGreaterThan(45_000);
    const near = { x0: -0.05, y0: -0.05, x1: 0, y1: 0 };
    expect(slotsOf(index.ranges(near, 50_000))).toEqual(slotsOf(index.ranges(near)));
  });
});

describe("picking", () => {
  const { x, y } = cloud(120_000, 5);
  const index = new PointIndex(x, y);

  it("finds the nearest point, as a search through all does", () => {
    const next = random(9);
    for (let trial = 0; trial < 40; trial++) {
      const [px, py] = [2.2 * next() - 1.1, next() - 0.5];
      const radius = 0.002 + 0.05 * next();
      let [best, wanted] = [radius * radius, -1];
      for (let row = 0; row < index.n; row++) {
        const [qx, qy] = index.position(row);
        const d = (qx - px) ** 2 + (qy - py) ** 2;
        if (d < best) [best, wanted] = [d, row];
      }
      expect(index.nearest(px, py, radius, all)).toBe(wanted);
    }
  });

  it("passes over hidden points", () => {
    const [px, py] = index.position(1234);
    expect(index.nearest(px, py, 0.001, all)).toBe(1234);
    const hidden = index.slots[1234];
    expect(index.nearest(px, py, 0.05, (slot) => slot !== hidden)).not.toBe(1234);
    expect(index.nearest(px, py, 0.05, () => false)).toBe(-1);
  });
});

describe("lasso", () => {
  const { x, y } = cloud(30_000, 7);
  const index = new PointIndex(x, y);

  /** By the winding of the angle: another way than the one under test. */
  function winds(polygon: number[], px: number, py: number): boolean {
    let turn = 0;
    for (let i = 0; i < polygon.length; i += 2) {
      const j = (i + 2) % polygon.length;
      const a = Math.atan2((polygon[i + 1] ?? 0) - py, (polygon[i] ?? 0) - px);
      const b = Math.atan2((polygon[j + 1] ?? 0) - py, (polygon[j] ?? 0) - px);
      turn += Math.atan2(Math.sin(b - a), Math.cos(b - a));
    }
    return Math.abs(turn) > Math.PI;
  }

  it("finds what lies inside a crooked polygon", () => {
    const corners = Array.from({ length: 60 }, (_, i) => {
      const angle = (2 * Math.PI * i) / 60;
      const radius = 0.12 + 0.05 * Math.sin(5 * angle);
      return [radius * Math.cos(angle) - 0.1, radius * Math.sin(angle)];
    }).flat();
    const wanted = Array.from({ length: index.n }, (_, row) => row).filter((row) => winds(corners, ...index.position(row)));
    expect(wanted.length).toBeGreaterThan(100);
    expect(Array.from(index.inside(corners, all))).toEqual(wanted);
    expect(Array.from(index.inside(corners, (slot) => (index.rows[slot] ?? 0) % 2 === 0))).toEqual(wanted.filter((row) => row % 2 === 0));
  });

  it("finds everything when drawn around the map, and nothing from two corners", () => {
    expect(index.inside([-3, -3, 3, -3, 3, 3, -3, 3], all)).toHaveLength(index.n);
    expect(index.inside([-1, 0, 1, 0], all)).toHaveLength(0);
    expect(index.inside([], all)).toHaveLength(0);
  });
});
