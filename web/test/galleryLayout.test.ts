import { describe, expect, it } from "vitest";
import { GalleryLayout } from "../src/galleryLayout";

const size = { columns: 4, across: 10, down: 20, gap: 2, heading: 7 };

describe("one section without a heading", () => {
  const layout = new GalleryLayout([{ title: "", count: 10 }], size);

  it("places tiles in lines", () => {
    expect(layout.position(0)).toEqual([2, 2]);
    expect(layout.position(5)).toEqual([12, 22]);
    expect(layout.height).toBe(62);
  });

  it("knows what is in sight", () => {
    expect(layout.visible(0, 20)).toMatchObject({ first: 0, end: 4 });
    expect(layout.visible(23, 43)).toMatchObject({ first: 4, end: 10 });
    expect(layout.visible(1000, 1100)).toMatchObject({ first: 0, end: 0 });
  });

  it("steps through all, and stops at the ends", () => {
    expect(layout.step(0, 1, 0)).toBe(1);
    expect(layout.step(0, -1, 0)).toBe(0);
    expect(layout.step(1, 0, 1)).toBe(5);
    expect(layout.step(7, 0, 1), "a shorter last line").toBe(9);
    expect(layout.step(9, 0, 1)).toBe(9);
    expect(layout.step(9, 0, -2)).toBe(1);
    expect(layout.step(2, 0, -1)).toBe(2);
    expect(layout.step(0, 0, 100)).toBe(8);
  });
});

describe("sections with headings", () => {
  const layout = new GalleryLayout(
    [
      { title: "a", count: 6 },
      { title: "none", count: 0 },
      { title: "b", count: 1 },
      { title: "c", count: 9 },
    ],
    size,
  );

  it("begins a new line for each, below its heading", () => {
    expect(layout.sections.map(({ title, first, top }) => [title, first, top])).toEqual([
      ["a", 0, 2],
      ["b", 6, 49],
      ["c", 7, 76],
    ]);
    expect(layout.position(6)).toEqual([2, 56]);
    expect(layout.position(7)).toEqual([2, 83]);
    expect(layout.position(15)).toEqual([2, 123]);
    expect(layout.height).toBe(143);
  });

  it("knows what is in sight", () => {
    const { first, end, sections } = layout.visible(45, 100);
    expect(sections.map((one) => one.title)).toEqual(["a", "b", "c"]);
    expect([first, end]).toEqual([4, 11]);
    for (let tile = 0; tile < 16; tile++) {
      const [, top] = layout.position(tile);
      const seen = layout.visible(top + 5, top + 6);
      expect(seen.first <= tile && tile < seen.end).toBe(true);
    }
  });

  it("steps from one into the next, in the same column where there is one", () => {
    expect(layout.step(5, 0, 1)).toBe(6);
    expect(layout.step(6, 0, 1)).toBe(7);
    expect(layout.step(10, 0, -1)).toBe(6);
    expect(layout.step(6, 0, -1)).toBe(4);
    expect(layout.step(5, 1, 0)).toBe(6);
  });
});

it("takes nothing", () => {
  const layout = new GalleryLayout([], size);
  expect(layout.height).toBe(2);
  expect(layout.visible(0, 100)).toMatchObject({ first: 0, end: 0 });
});
