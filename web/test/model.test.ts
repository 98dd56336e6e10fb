import { describe, expect, it } from "vitest";
import type { Preview } from "../src/dataSource";
import { model } from "./samples";

const CLASSES = ["cat", "dog"];
const made = (): ReturnType<typeof model> =>
  model(
    [
      { id: "train/a", label: 0, score: 3, keep: true },
      { id: "train/b", label: 0, score: 9, keep: false },
      { id: "train/ab", label: 1, score: 5, keep: true, overridden: true },
      { id: "Train/C", label: 1, score: 5, keep: false },
    ],
    CLASSES,
  );

function preview(...keep: number[]): Preview {
  return { keep: Uint8Array.from(keep), cluster: null } as Preview;
}

describe("Model", () => {
  it("shows the class that a person gave", () => {
    const it = model([{ id: "a", label: 0, score: 1, keep: true, place: 1, newLabel: 1 }, { id: "b", label: 0, score: 1, keep: true, place: 1 }], CLASSES);
    expect([it.className(0), it.otherClasses(0)]).toEqual(["dog", []]);
    expect([it.className(1), it.otherClasses(1)]).toEqual(["cat", ["dog"]]);
    expect(it.describe(0)).toContain("new label");
  });

  it("counts and filters by the class that a person gave, until it is undone", () => {
    const it = model([{ id: "a", label: 0, score: 1, keep: false, newLabel: 1 }, { id: "b", label: 0, score: 1, keep: true }], CLASSES);
    it.hideClasses([0]);
    expect([it.classCounts.map((one) => [one.total, one.dropped]), Array.from(it.visible() ?? [])]).toEqual([[[1, 0], [1, 1]], [1, 0]]);
    it.setDecisions({ keep: it.keep, overridden: it.overridden, newLabel: null, undo: 0, redo: 1 });
    expect([it.classCounts.map((one) => [one.total, one.dropped]), Array.from(it.visible() ?? [])]).toEqual([[[2, 1], [0, 0]], [0, 0]]);
  });

  it.each([
    [{ suggested: 2, place: 1 }, ["cow", "dog"], "probably cow: cat → cow, lies among dog"],
    [{ suggested: 1, place: 1 }, ["dog"], "probably dog: cat → dog, score"],
    [{ suggested: 2 }, ["cow"], "probably cow: cat → cow, score"],
    [{ place: 1 }, ["dog"], "lies among dog: cat → dog, score"],
    [{}, [], "cat, kept, score"],
    [{ suggested: 2, place: 1, newLabel: 1 }, [], "dog, kept, new label, score"],
  ])("offers what the filter suggests first, then the class around a sample: %j", (about, choices, text) => {
    const it = model([{ id: "a", label: 0, score: 1, keep: true, ...about }], [...CLASSES, "cow"]);
    expect(it.otherClasses(0)).toEqual(choices);
    expect(it.describe(0)).toContain(text);
  });

  it.each([
    ["dog", 1],
    ["D", 1],
    [" CAT ", 0],
    ["1", 1],
    ["2", -1],
    ["", -1],
    ["x", -1],
  ])("finds the class meant by %j", (text, label) => expect(made().findClass(text)).toBe(label));

  it("wants more letters where two classes begin alike", () => {
    const it = model([{ id: "a", label: 0, score: 1, keep: true }], ["cat", "cat-big", "10", "1"]);
    expect(["c", "cat", "cat-", "1", "10", "0"].map((text) => it.findClass(text))).toEqual([-1, 0, 1, 3, 2, 0]);
  });

  it("tells classes apart whose names differ in case", () => {
    const it = model([{ id: "a", label: 0, score: 1, keep: true, place: 1 }], ["Cat", "cat", "Dog", " x", "x"]);
    expect(["Cat", "cat", "CAT", "dog", " x", "x"].map((text) => it.findClass(text))).toEqual([0, 1, -1, 2, 3, 4]);
    expect(it.findClass(it.otherClasses(0)[0] ?? "")).toBe(1);
  });

  it("counts what is shown, in all and per class", () => {
    const it = made();
    expect(it.counts).toEqual({ total: 4, dropped: 2, overridden: 1 });
    expect(it.classCounts.map((one) => one.dropped)).toEqual([1, 1]);
  });

  it("lets a decision by hand stand over a preview", () => {
    const it = made();
    it.setPreview(preview(0, 1, 0, 1));
    expect(Array.from(it.shown)).toEqual([0, 1, 1, 1]);
    it.setPreview(null);
    expect(Array.from(it.shown)).toEqual([1, 0, 1, 0]);
  });

  it.each([
    ["all", [], [1, 1, 1, 1]],
    ["kept", [], [1, 0, 1, 0]],
    ["dropped", [], [0, 1, 0, 1]],
    ["overridden", [], [0, 0, 1, 0]],
    ["dropped", [0], [0, 0, 0, 1]],
  ] as const)("shows %s without the classes %s", (show, hidden, wanted) => {
    const it = made();
    it.setShow(show);
    it.hideClasses(hidden);
    const visible = it.visible() ?? new Uint8Array(4).fill(1);
    expect(Array.from(visible)).toEqual(wanted);
  });

  it("orders by suspicion, and finds ids whatever their case", () => {
    const it = made();
    expect(Array.from(it.suspicious())).toEqual([1, 2, 3, 0]);
    expect(it.find("train/a")).toEqual([0, 2]);
    expect(it.find("c")).toEqual([3]);
    expect(it.find("atrain"), "no match reaches from one id into the next").toEqual([]);
    expect(it.find("train")).toEqual([0, 1, 2, 3]);
    const alike = ["img_10", "img_1", "IMG_1", "img_11"].map((id) => ({ id, label: 0, score: 1, keep: true }));
    expect(["img_1", "IMG_1", "Img"].map((text) => model(alike, CLASSES).find(text)), "the id itself comes first").toEqual([
      [1, 2, 0, 3],
      [2, 1, 0, 3],
      [0, 1, 2, 3],
    ]);
    const many = Array.from({ length: 6000 }, (_, n) => ({ id: `train/${n}`, label: 0, score: 1, keep: true }));
    expect(model(many, CLASSES).find("train").length, "all of them are counted and picked").toBe(6000);
  });

  it("finds the nearest on the map", () => {
    // Coordinates: (0, 0), (1, 2), (2, 4), (3, 1).
    expect(made().nearest(0, 2)).toEqual([1, 3]);
    expect(made().nearest(0, 10)).toHaveLength(3);
  });

  it("tells those who listen, and only of what they listen to", () => {
    const it = made();
    const heard: string[] = [];
    it.on(["focus"], () => heard.push("focus"));
    it.on(["picked", "filter"], () => heard.push("picked or filter"));
    it.setFocus(1);
    it.setFocus(1);
    it.pick([]);
    it.setShow("kept");
    expect(heard).toEqual(["focus", "picked or filter", "picked or filter"]);
    expect(it.picked).toBeNull();
  });
});
