import { expect, it } from "vitest";
import { ascending, descending, range, groupByLabels, groupStable } from "../src/sorting";
import { random } from "./samples";

it("sorts as a comparison does, equal values by row", () => {
  const next = random(4);
  const values = Float32Array.from({ length: 5000 }, () => Math.round(200 * next() - 100) / 7);
  values.set([0, -0, Infinity, -Infinity, 1e-40], 100);
  const rows = Array.from(range(values.length));
  const at = (row: number): number => values[row] ?? 0;
  expect(Array.from(ascending(values))).toEqual([...rows].sort((a, b) => at(a) - at(b) || a - b));
  const falling = (a: number, b: number): number => (at(b) > at(a) ? 1 : at(b) < at(a) ? -1 : a - b);
  expect(Array.from(descending(values))).toEqual([...rows].sort(falling));
});

it("groups without changing the order inside a group", () => {
  const group = Int16Array.of(2, 0, 1, 0, 2, 1);
  expect(Array.from(groupStable(Int32Array.of(5, 4, 3, 2, 1, 0), group))).toEqual([3, 1, 5, 2, 4, 0]);
});

it("takes nothing", () => {
  expect(ascending(new Float32Array())).toHaveLength(0);
});

it("groups by label and surroundings: strangers first, the largest group first", () => {
  const label = Int16Array.of(0, 0, 1, 1, 1, 2, 2);
  const place = Int16Array.of(0, 1, 0, 0, 1, 2, 0);
  const { rows, groups } = groupByLabels(Int32Array.of(6, 5, 4, 3, 2, 1, 0), label, place);
  expect(Array.from(rows)).toEqual([3, 2, 1, 6, 0, 4, 5]);
  expect(groups.map(({ label: a, other: b, count }) => [a, b, count])).toEqual([
    [1, 0, 2],
    [0, 1, 1],
    [2, 0, 1],
    [0, 0, 1],
    [1, 1, 1],
    [2, 2, 1],
  ]);
});
