import { describe, expect, it } from "vitest";
import { interpolate, Camera } from "../src/map/camera";

function camera(): Camera {
  const made = new Camera();
  made.width = 800;
  made.height = 600;
  made.set(made.viewOf({ x0: -1, y0: -0.5, x1: 1, y1: 0.5 }, { top: 0, right: 0, bottom: 0, left: 0 }));
  made.fittedScale = made.scale;
  return made;
}

describe("Camera", () => {
  it("maps to the screen and back, with y upwards", () => {
    const view = camera();
    expect(view.toScreen(0, 0)).toEqual([400, 300]);
    expect(view.toScreen(0, 0.1)[1]).toBeLessThan(300);
    const [x, y] = view.toMap(...view.toScreen(0.3, -0.2));
    expect(x).toBeCloseTo(0.3, 10);
    expect(y).toBeCloseTo(-0.2, 10);
  });

  it("leaves room for what covers the edges", () => {
    const view = camera();
    view.set(view.viewOf({ x0: -1, y0: -1, x1: 1, y1: 1 }, { top: 100, right: 0, bottom: 20, left: 0 }));
    const [left, top] = view.toScreen(-1, 1);
    const [right, bottom] = view.toScreen(1, -1);
    expect(top).toBeCloseTo(100);
    expect(bottom).toBeCloseTo(580);
    expect(left + right).toBeCloseTo(800);
  });

  it("zooms to the pointer, within bounds", () => {
    const view = camera();
    const before = view.toMap(150, 90);
    view.zoomAt(150, 90, 3);
    expect(view.zoom).toBeCloseTo(3);
    expect(view.toMap(150, 90)[0]).toBeCloseTo(before[0], 10);
    expect(view.toMap(150, 90)[1]).toBeCloseTo(before[1], 10);
    view.zoomAt(0, 0, 1e9);
    expect(view.zoom).toBe(2000);
    view.zoomAt(0, 0, 1e-9);
    expect(view.zoom).toBeCloseTo(0.4);
  });

  it("moves with the pointer", () => {
    const view = camera();
    const under = view.toMap(200, 200);
    view.panBy(30, -12);
    expect(view.toScreen(...under)[0]).toBeCloseTo(230);
    expect(view.toScreen(...under)[1]).toBeCloseTo(188);
  });

  it("does not zoom into a single point for ever", () => {
    const view = camera();
    const one = view.viewOf({ x0: 0, y0: 0, x1: 0, y1: 0 }, { top: 0, right: 0, bottom: 0, left: 0 });
    expect(Number.isFinite(one.scale)).toBe(true);
  });

  it("tells what is in sight", () => {
    const box = camera().box(40);
    expect(box.x1 - box.x0).toBeCloseTo(2 * (880 / 800));
    expect(box.y1).toBeGreaterThan(box.y0);
  });

  it("glides from one view to the other; what is fixed in both stays where it is", () => {
    const view = camera();
    const from = { x: view.x, y: view.y, scale: view.scale };
    view.zoomAt(150, 90, 4);
    const to = { x: view.x, y: view.y, scale: view.scale };
    const fixed = view.toMap(150, 90);
    for (const share of [0, 0.25, 0.5, 0.9, 1]) {
      view.set(interpolate(from, to, share));
      expect(view.toScreen(...fixed)[0]).toBeCloseTo(150, 6);
      expect(view.toScreen(...fixed)[1]).toBeCloseTo(90, 6);
    }
    expect(interpolate(from, { ...from, x: 1 }, 0.5).x).toBeCloseTo((from.x + 1) / 2);
  });
});
