import { describe, expect, it } from "vitest";
import { density } from "../src/map/density";
import { PointIndex } from "../src/map/pointIndex";
import { CanvasRenderer } from "../src/map/canvasRenderer";
import { parseColour, type Frame, type Pass } from "../src/map/renderer";

const [WIDTH, HEIGHT] = [40, 30];

/** Just what the renderer needs of a 2D canvas. */
function context(): { context: CanvasRenderingContext2D; pixel: (x: number, y: number) => number[] } {
  let image: ImageData | undefined;
  const made = {
    canvas: { width: 0, height: 0 },
    createImageData: (width: number, height: number) => ({ width, height, data: new Uint8ClampedArray(4 * width * height) }),
    putImageData: (given: ImageData) => (image = given),
  };
  return {
    context: made as unknown as CanvasRenderingContext2D,
    pixel: (x, y) => Array.from(image?.data.slice(4 * (y * WIDTH + x), 4 * (y * WIDTH + x) + 4) ?? []),
  };
}

function drawn(points: { x: number; y: number; colour?: number; state?: number; visible?: boolean }[], passes?: Pass[]): (x: number, y: number) => number[] {
  const fake = context();
  const renderer = new CanvasRenderer(fake.context);
  renderer.resize(WIDTH, HEIGHT);
  renderer.setPositions(Float32Array.from(points.flatMap(({ x, y }) => [x, y])));
  renderer.setState(Uint8Array.from(points.flatMap((p) => [(p.colour ?? 0) & 255, (p.colour ?? 0) >> 8, p.state ?? 0, Number(p.visible ?? true)])));
  const frame: Frame = {
    scale: 1,
    left: 0,
    top: HEIGHT,
    ratio: 1,
    style: {
      palette: Array.from({ length: 300 }, (_, n) => (n === 0 ? [200, 100, 50] : [n % 256, 10, 20])),
      opacity: [1, 0.5, 1, 1],
      sizes: [6, 6, 8, 11],
      background: [250, 250, 250],
    },
    passes: passes ?? [{ slots: [{ start: 0, count: points.length }], opacity: 1, grow: 0 }],
  };
  renderer.draw(frame);
  return fake.pixel;
}

describe("CanvasRenderer", () => {
  it("draws a disc of the right colour and size, with y upwards", () => {
    const pixel = drawn([{ x: 10, y: 20 }]);
    expect(pixel(10, 10)).toEqual([200, 100, 50, 255]);
    expect(pixel(10, 8)).toEqual([200, 100, 50, 255]);
    expect(pixel(10, 5)).toEqual([250, 250, 250, 255]);
    expect(pixel(10, 20)).toEqual([250, 250, 250, 255]);
  });

  it("mixes by opacity", () => {
    const [r, g, b] = drawn([{ x: 10, y: 20, state: 1 }])(10, 10);
    expect([r, g, b]).toEqual([225, 175, 150]);
  });

  it("draws a ring with an empty middle", () => {
    const pixel = drawn([{ x: 20.5, y: 14.5, state: 3 }]);
    expect(pixel(20, 15)).toEqual([250, 250, 250, 255]);
    expect(pixel(25, 15)).toEqual([200, 100, 50, 255]);
  });

  it("leaves hidden points out, and takes colours beyond 256", () => {
    const pixel = drawn([
      { x: 10, y: 20, visible: false },
      { x: 30, y: 20, colour: 299 },
    ]);
    expect(pixel(10, 10)).toEqual([250, 250, 250, 255]);
    expect(pixel(30, 10)).toEqual([43, 10, 20, 255]);
  });

  it("cuts at the edges", () => {
    const points = [-3, -2, 0, 39, 40, 43].flatMap((x) => [-3, 0, 15, 30, 33].map((y) => ({ x, y })));
    expect(drawn(points)(0, 15)).toEqual([200, 100, 50, 255]);
  });

  it("draws a list of points larger and in one colour", () => {
    const slots = Uint32Array.of(1);
    const pixel = drawn(
      [
        { x: 10, y: 20 },
        { x: 30, y: 20 },
      ],
      [{ slots, opacity: 1, grow: 4, colour: [1, 2, 3] }],
    );
    expect(pixel(10, 10)).toEqual([250, 250, 250, 255]);
    expect(pixel(30, 6)).toEqual([1, 2, 3, 255]);
  });
});

describe("density", () => {
  it("has the mean colour of the visible points, opaque where most are", () => {
    const x = Float32Array.of(0, 0, 0, 0, 10, 10);
    const index = new PointIndex(x, new Float32Array(6));
    const state = new Uint8Array(24);
    for (let row = 0; row < 6; row++) {
      const at = 4 * (index.slots[row] ?? 0);
      state[at] = row === 0 ? 1 : 0;
      state[at + 3] = row === 5 ? 0 : 1;
    }
    const view = { scale: 9, left: 10, top: 2.5, width: 20, height: 5 };
    const rgba = density(index, state, [[100, 0, 0], [0, 100, 0]], [{ start: 0, count: 6 }], view);
    const cell = (column: number, row: number): number[] => Array.from(rgba.slice(4 * (row * 20 + column), 4 * (row * 20 + column) + 4));
    expect(cell(1, 2)).toEqual([75, 25, 0, 255]);
    expect(cell(19, 2).slice(0, 3)).toEqual([100, 0, 0]);
    expect(cell(19, 2)[3]).toBeGreaterThan(30);
    expect(cell(19, 2)[3]).toBeLessThan(120);
    expect(cell(2, 2)[3]).toBeLessThan(255);
    expect(cell(10, 2)).toEqual([0, 0, 0, 0]);
  });
});

it("reads colours", () => {
  expect(parseColour("#4c86c6")).toEqual([0x4c, 0x86, 0xc6]);
});
