import { beforeEach, describe, expect, it } from "vitest";
import { classColour, comparisonGroup, encode, grey, scale } from "../src/colours";
import type { Comparison, Preview } from "../src/dataSource";
import { model, setTheme } from "./samples";

beforeEach(() => setTheme("light"));

const made = (): ReturnType<typeof model> =>
  model(
    [
      { id: "a", label: 0, score: 1, keep: true, cluster: 0 },
      { id: "b", label: 1, score: 4, keep: false, cluster: -1 },
      { id: "c", label: 1, score: 2, keep: true, overridden: true, cluster: 30, place: 0 },
      { id: "d", label: 2, score: 4, keep: false, overridden: true, cluster: 30 },
    ],
    ["x", "y", "z"],
  );

/** The colour of each row. */
function colours(of: ReturnType<typeof model>): (string | undefined)[] {
  const { palette, index } = encode(of);
  return Array.from(index, (at) => palette[at]);
}

describe("encode", () => {
  it("colours by the class that a person gave", () => {
    const it = model([{ id: "a", label: 0, score: 1, keep: true, newLabel: 2 }, { id: "b", label: 0, score: 1, keep: true }], ["x", "y", "z"]);
    expect(colours(it)).toEqual([classColour(2, 3), classColour(0, 3)]);
  });

  it("colours by class, dropped samples in grey", () => {
    const it = made();
    expect(colours(it)).toEqual([classColour(0, 3), grey(), classColour(1, 3), grey()]);
    expect(Array.from(encode(it).state)).toEqual([0, 1, 2, 2]);
    expect(encode(it).legend).toEqual([{ colour: grey(), text: "dropped", count: 2, hollow: false }]);
  });

  it("draws dropped samples as rings, or like the rest", () => {
    const it = made();
    it.setDroppedStyle("ring");
    expect(Array.from(encode(it).state)).toEqual([0, 3, 2, 2]);
    expect(colours(it)[1]).toBe(classColour(1, 3));
    it.setDroppedStyle("plain");
    expect(Array.from(encode(it).state)).toEqual([0, 1, 2, 2]);
    expect(encode(it).legend).toEqual([]);
  });

  it("tells what a preview would change", () => {
    const it = made();
    it.setColour("decision");
    it.setPreview({ keep: Uint8Array.of(0, 1, 0, 1), cluster: null } as Preview);
    expect(encode(it).legend.map(({ text, count }) => [text, count])).toEqual([
      ["kept", 0],
      ["dropped", 0],
      ["newly dropped", 1],
      ["newly kept", 1],
      ["kept by hand", 1],
      ["dropped by hand", 1],
    ]);
  });

  it("counts clusters, strangers and what is in none", () => {
    const it = made();
    it.setColour("cluster");
    expect(encode(it).legend.map(({ text, count }) => [text, count])).toEqual([
      ["in 2 clusters", 3],
      ["in none", 1],
    ]);
    it.setColour("neighbourhood");
    expect(encode(it).legend[0]?.count).toBe(1);
  });

  it("colours a scale by rank, equal values alike", () => {
    const it = made();
    it.setColour("score");
    const { index, palette, ends } = encode(it);
    expect(palette).toEqual(scale());
    expect(index[1]).toBe(index[3]);
    expect(index[0]).toBeLessThan(index[2] ?? 0);
    expect(index[2]).toBeLessThan(index[1] ?? 0);
    expect(ends).toEqual(["1.00", "4.00"]);
  });

  it("groups a comparison", () => {
    const it = made();
    it.setComparison({ keep: Uint8Array.of(1, 0, 0, 1), held: Uint8Array.of(1, 1, 1, 0), numbers: { b: "b" } } as Comparison);
    expect([0, 1, 2, 3].map((row) => comparisonGroup(it, row))).toEqual([0, 1, 3, 4]);
  });

  it("is readable in the dark", () => {
    const light = grey();
    setTheme("dark");
    expect(grey()).not.toBe(light);
  });
});

it("gives many classes colours that are all valid, and neighbours different ones", () => {
  const all = Array.from({ length: 4096 }, (_, label) => classColour(label, 4096));
  expect(all.every((colour) => /^#[0-9a-f]{6}$/.test(colour))).toBe(true);
  for (let label = 1; label < all.length; label++) expect(all[label]).not.toBe(all[label - 1]);
  expect(new Set(all).size).toBeGreaterThan(500);
});
