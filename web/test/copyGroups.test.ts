import { expect, it } from "vitest";
import { groupCopies } from "../src/copyGroups";
import type { CopyLinks } from "../src/dataSource";

function links(...all: [row: number, other: number, similarity: number][]): CopyLinks {
  const column = (at: number): number[] => all.map((link) => link[at] as number);
  return { row: Int32Array.from(column(0)), other: Int32Array.from(column(1)), similarity: Float32Array.from(column(2)), measure: "cosine", outside: [] };
}

const LABEL = Int16Array.of(0, 0, 0, 1, 1, 2, 0);

it("finds what links connect, whatever their order", () => {
  const chain = groupCopies(links([4, 3, 0.5], [0, 2, 0.75], [6, 1, 0.5], [1, 2, 1]), LABEL);
  expect(chain).toEqual([
    { kind: "duplicates", rows: [3, 4], similarity: 0.5 },
    { kind: "duplicates", rows: [0, 1, 2, 6], similarity: 0.5 },
  ]);
});

it("puts the most similar first, by the weakest link", () => {
  const groups = groupCopies(links([0, 1, 1], [1, 2, 0.25], [3, 4, 0.5]), LABEL);
  expect(groups.map((group) => [group.rows, group.similarity])).toEqual([[[3, 4], 0.5], [[0, 1, 2], 0.25]]);
});

it("tells test images, different labels and plain copies apart", () => {
  const groups = groupCopies(links([0, 1, 1], [3, 5, 0.75], [2, 8, 0.5], [6, 8, 0.5], [4, 7, 0.25]), LABEL);
  expect(groups.map((group) => [group.kind, group.rows])).toEqual([
    ["duplicates", [0, 1]],
    ["conflicts", [3, 5]],
    ["leakage", [8, 2, 6]],
    ["leakage", [7, 4]],
  ]);
});

it("takes nothing, and a long chain", () => {
  expect(groupCopies(links(), LABEL)).toEqual([]);
  const n = 50_000;
  const long = Array.from({ length: n - 1 }, (_, i): [number, number, number] => [i, i + 1, 1]);
  const [group, ...more] = groupCopies(links(...long), new Int16Array(n));
  expect(more).toHaveLength(0);
  expect(group?.rows).toHaveLength(n);
});
