/** The map: every sample a point. Decides what is drawn when; renderers do the drawing. */

import { dark, encode, type Encoding } from "../colours";
import { h, perFrame, svg } from "../dom";
import { NO_ROW, type Model } from "../model";
import { between, Camera, type Insets, type View } from "./camera";
import { density } from "./density";
import { Gestures, type Mode, type Spot } from "./gestures";
import { PointIndex, type Range } from "./pointIndex";
import { RasterRenderer } from "./raster";
import { parseColour, STATE_BYTES, type Frame, type Pass, type PointRenderer, type Rgb, type Style } from "./renderer";
import { WebGLRenderer } from "./webgl";

export type { Mode } from "./gestures";

/** Above this many points, rings are too small to be seen. */
export const MANY = 300_000;
/** Above this many, picked points are not drawn a second time on top of the others. */
const LIT_LIMIT = 200_000;
/** Below this many, picked points also get an outline. */
const OUTLINED_LIMIT = 3_000;
/** A ring is larger than a disc, or its hole would not be seen. */
const RING_MORE = 3.5;
const HAND_MORE = 2.5;
const DIMMED = 0.3;
/** A frame may take so long while something moves; where it takes longer, fewer points are drawn. */
const MOVING_MS = 50;
const FEWEST = 50_000;
/** What has not moved for so long is drawn in full. */
const STILL_MS = 250;
/** Time for the first picture to be seen before its drawing is timed. */
const AFTER_FIRST_MS = 200;
const TRANSITION_MS = 250;
const WHEEL_MS = 110;
const MARGIN_PX = 18;
/** CSS pixels a side of a cell of the density. */
const DENSITY_PX = 3;

export class MapView {
  readonly element: HTMLElement;
  /** Called with a row under the pointer, or `NO_ROW`. */
  onHover: (row: number) => void = () => undefined;
  onEncoded: (encoding: Encoding) => void = () => undefined;
  /** Pixels at the edges that something covers: the whole map is fitted between them. */
  insets: () => Insets = () => ({ top: 0, right: 0, bottom: 0, left: 0 });
  private readonly canvas: HTMLCanvasElement;
  private readonly below = h("canvas", { className: "density", hidden: true, "aria-hidden": "true" });
  private readonly marks = svg("svg", { class: "marks", "aria-hidden": "true" });
  private readonly index: PointIndex;
  private readonly state: Uint8Array<ArrayBuffer>;
  private readonly camera = new Camera();
  private renderer: PointRenderer | null = null;
  private gestures: Gestures | null = null;
  private style: Style | null = null;
  /** Rows joined to the focused one by lines: its neighbours. */
  private linked: number[] = [];
  private hovered = NO_ROW;
  private lasso: Spot[] | null = null;
  private lit: Uint32Array<ArrayBuffer> | null = null;
  private dense = false;
  /** Colours or visibility have changed since the last frame. */
  private stale = true;
  private waiting: (() => void)[] = [];
  /** The whole map is in sight, as it was fitted: a new size fits it again. */
  private fitted = true;
  private transition = 0;
  private ratio = 1;
  /** How many points are drawn while something moves, and how many now. */
  private few = Infinity;
  private limit = Infinity;
  private still = 0;
  private readonly frame = perFrame(() => this.paint());

  constructor(private readonly model: Model) {
    this.canvas = h("canvas", {
      className: "points",
      role: "img",
      "aria-label":
        "Map of the samples. Drag to move, wheel to zoom, shift and drag to lasso. The gallery lists the same samples for the keyboard.",
    });
    this.element = h("div", { className: "map" }, this.below, this.canvas, this.marks);
    this.index = new PointIndex(model.x, model.y);
    this.state = new Uint8Array(STATE_BYTES * model.n);
    model.on(["decisions", "preview", "colour", "theme", "comparison", "places", "dropped", "filter"], () => this.redraw());
    model.on(["preview"], () => this.moving());
    model.on(["picked"], () => {
      this.light();
      this.frame();
    });
    model.on(["focus"], () => this.mark());
  }

  /** Start drawing; the element must be in the page, since its size is read. */
  start(): void {
    if (this.model.n === 0) return;
    this.renderer = createRenderer(this.canvas, () => this.frame());
    this.renderer.setPositions(this.index.xy as Float32Array<ArrayBuffer>);
    this.element.dataset["renderer"] = this.renderer.kind;
    this.gestures = new Gestures(this.canvas, {
      pan: (dx, dy) => this.move(() => this.camera.panBy(dx, dy)),
      zoom: (left, top, factor, jump) => this.zoom(left, top, factor, jump),
      hover: (spot) => this.hover(spot),
      click: (spot) => this.click(spot),
      lassoMove: (polygon) => this.drawLasso(polygon),
      lassoEnd: (polygon) => this.endLasso(polygon),
    });
    this.recolour();
    this.resize();
    new ResizeObserver(() => this.resize()).observe(this.element);
    this.watchRatio();
    this.frame();
    if (this.model.n > FEWEST) window.setTimeout(() => this.time(), AFTER_FIRST_MS);
    else this.element.dataset["indexed"] = String(this.model.n);
  }

  setMode(mode: Mode): void {
    if (this.gestures !== null) this.gestures.mode = mode;
    this.element.classList.toggle("lasso-mode", mode === "lasso");
  }

  setDense(dense: boolean): void {
    this.dense = dense;
    this.below.hidden = !dense;
    this.frame();
  }

  /** Show the whole map. */
  fit(): void {
    const view = this.wholeView();
    this.camera.setFitted(view.scale);
    this.glide(view, TRANSITION_MS, () => (this.fitted = true));
  }

  /** Where a sample stands, in pixels from the top left corner of the map. */
  position(row: number): [number, number] | undefined {
    return this.renderer === null ? undefined : this.camera.toScreen(...this.index.position(row));
  }

  link(rows: number[]): void {
    this.linked = rows;
    this.mark();
  }

  /** Resolves once what the model says is drawn. */
  settled(): Promise<void> {
    if (!this.stale || this.renderer === null) return Promise.resolve();
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  // Drawing ------------------------------------------------------------------------------------

  private redraw(): void {
    if (this.renderer === null) {
      this.onEncoded(encode(this.model));
      return;
    }
    this.stale = true;
    this.element.dataset["stale"] = "true";
    this.frame();
  }

  /** Draw one frame: the state if it changed, then the points, then what stands above them. */
  private paint(): void {
    const { renderer } = this;
    if (renderer === null) return;
    if (this.stale) this.recolour();
    this.draw(renderer);
    this.mark();
    this.element.dataset["drawn"] = "true";
    delete this.element.dataset["stale"];
    for (const resolve of this.waiting.splice(0)) resolve();
  }

  private draw(renderer: PointRenderer): void {
    const { camera, ratio, style } = this;
    if (style === null) return;
    const grow = this.grow();
    const sizes = style.sizes.map((size) => size * grow) as Style["sizes"];
    const margin = Math.max(...sizes) / 2 + 2;
    const ranges = this.index.ranges(camera.box(margin), this.limit);
    const [left, top] = camera.toScreen(0, 0);
    const frame: Frame = {
      scale: camera.scale * ratio,
      left: left * ratio,
      top: top * ratio,
      ratio,
      style: { ...style, sizes, background: this.dense ? null : style.background },
      passes: this.passes(ranges),
    };
    renderer.draw(frame);
    if (this.dense) this.drawDensity(ranges, style.palette);
  }

  private passes(ranges: Range[]): Pass[] {
    const { lit } = this;
    const all: Pass[] = this.dense ? [] : [{ slots: ranges, opacity: lit === null ? 1 : DIMMED, grow: 0 }];
    if (lit === null) return all;
    if (lit.length > OUTLINED_LIMIT) return [...all, { slots: lit, opacity: 1, grow: 0.5 }];
    const outline: Rgb = dark() ? [255, 255, 255] : [17, 20, 24];
    return [...all, { slots: lit, opacity: 1, grow: 4.5, colour: outline }, { slots: lit, opacity: 1, grow: 1.5 }];
  }

  /** Fill the canvas below the points; the browser scales it up smoothly. */
  private drawDensity(ranges: Range[], palette: Rgb[]): void {
    const [left, top] = this.camera.toScreen(0, 0).map((at) => at / DENSITY_PX) as Spot;
    const [width, height] = [this.camera.width, this.camera.height].map((size) => Math.ceil(size / DENSITY_PX)) as Spot;
    const view = { scale: this.camera.scale / DENSITY_PX, left, top, width, height };
    const image = new ImageData(density(this.index, this.state, palette, ranges, view), width, height);
    this.below.width = width;
    this.below.height = height;
    this.below.style.width = `${width * DENSITY_PX}px`;
    this.below.style.height = `${height * DENSITY_PX}px`;
    this.below.getContext("2d")?.putImageData(image, 0, 0);
  }

  /** Work out colours and visibility, and send them to the renderer. */
  private recolour(): void {
    this.stale = false;
    const encoding = encode(this.model);
    this.onEncoded(encoding);
    const { n } = this.model;
    const { index, state } = encoding;
    const { rows } = this.index;
    const visible = this.model.visible();
    // First in the order of rows, then by slot: one read from anywhere per point instead of three.
    const byRow = new Uint32Array(n);
    for (let row = 0; row < n; row++) {
      const seen = visible === null ? 1 : (visible[row] as number);
      byRow[row] = (index[row] as number) | ((state[row] as number) << 16) | (seen << 24);
    }
    const bySlot = new Uint32Array(this.state.buffer);
    for (let slot = 0; slot < n; slot++) bySlot[slot] = byRow[rows[slot] as number] as number;
    const size = pointSize(this.model.n);
    this.style = {
      palette: encoding.palette.map(parseColour),
      opacity: encoding.opacity,
      sizes: [size, size, size + HAND_MORE, size + RING_MORE],
      background: parseColour(dark() ? "#14171c" : "#fbfbf9"),
    };
    this.light();
    this.renderer?.setState(this.state);
  }

  /** Which points are lit: the picked ones that can be seen. */
  private light(): void {
    const { picked } = this.model;
    if (picked === null || picked.rows.length > LIT_LIMIT) this.lit = null;
    else this.lit = Uint32Array.from(picked.rows, (row) => this.index.slots[row] ?? 0).sort();
  }

  /** Points grow when one zooms in, but much less than the map does. */
  private grow(): number {
    return Math.asinh(Math.max(1, this.camera.zoom)) / Math.asinh(1);
  }

  // Moving -------------------------------------------------------------------------------------

  /** Change the view by hand. */
  private move(change: () => void): void {
    this.transition++;
    this.fitted = false;
    change();
    this.moving();
    this.frame();
  }

  private zoom(left: number, top: number, factor: number, jump: boolean): void {
    if (!jump || still()) {
      this.move(() => this.camera.zoomAt(left, top, factor));
      return;
    }
    const { x, y, scale } = this.camera;
    this.move(() => this.camera.zoomAt(left, top, factor));
    const to = { x: this.camera.x, y: this.camera.y, scale: this.camera.scale };
    this.camera.set({ x, y, scale });
    this.glide(to, WHEEL_MS);
  }

  /** Go to a view in a few frames. A newer movement ends it. */
  private glide(to: View, duration: number, done: () => void = () => undefined): void {
    const turn = ++this.transition;
    const from = { x: this.camera.x, y: this.camera.y, scale: this.camera.scale };
    const begun = performance.now();
    const step = (): void => {
      if (turn !== this.transition) return;
      const share = still() ? 1 : Math.min(1, (performance.now() - begun) / duration);
      this.camera.set(share === 1 ? to : between(from, to, 1 - (1 - share) ** 2));
      this.moving();
      this.paint();
      if (share < 1) requestAnimationFrame(step);
      else done();
    };
    requestAnimationFrame(step);
  }

  private resize(): void {
    const { camera, renderer } = this;
    const { clientWidth: width, clientHeight: height } = this.element;
    if (renderer === null || width === 0 || height === 0) return;
    this.ratio = window.devicePixelRatio || 1;
    camera.width = width;
    camera.height = height;
    const view = this.wholeView();
    camera.setFitted(view.scale);
    if (this.fitted) camera.set(view);
    renderer.resize(Math.round(width * this.ratio), Math.round(height * this.ratio));
    // At once: a canvas of a new size is empty.
    this.paint();
  }

  private watchRatio(): void {
    const media = matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`);
    media.addEventListener(
      "change",
      () => {
        this.resize();
        this.watchRatio();
      },
      { once: true },
    );
  }

  private wholeView(): View {
    const { top, right, bottom, left } = this.insets();
    const insets = { top: top + MARGIN_PX, right: right + MARGIN_PX, bottom: bottom + MARGIN_PX, left: left + MARGIN_PX };
    return this.camera.viewOf(this.index.bounds, insets);
  }

  /** Draw fewer points until nothing has moved for a while, where all would take too long. */
  private moving(): void {
    if (this.few === Infinity) return;
    this.limit = this.few;
    this.element.dataset["thinned"] = "true";
    window.clearTimeout(this.still);
    this.still = window.setTimeout(() => {
      this.limit = Infinity;
      delete this.element.dataset["thinned"];
      this.frame();
    }, STILL_MS);
  }

  /** Find out how long a full frame takes, and so how many points can be drawn while moving. */
  private time(): void {
    const { renderer } = this;
    if (renderer === null) return;
    renderer.finish();
    const begun = performance.now();
    this.draw(renderer);
    renderer.finish();
    const took = performance.now() - begun;
    this.element.dataset["frameMs"] = took.toFixed(0);
    if (took > MOVING_MS) this.few = Math.max(FEWEST, Math.round((this.model.n * MOVING_MS) / took));
    this.element.dataset["indexed"] = String(Math.min(this.few, this.model.n));
  }

  // Picking ------------------------------------------------------------------------------------

  private at([left, top]: Spot): number {
    const reach = Math.max(6, (pointSize(this.model.n) * this.grow()) / 2 + 3);
    const [x, y] = this.camera.toMap(left, top);
    return this.index.nearest(x, y, reach / this.camera.scale, (slot) => this.state[STATE_BYTES * slot + 3] === 1);
  }

  private hover(spot: Spot | null): void {
    const row = spot === null ? NO_ROW : this.at(spot);
    if (row === this.hovered) return;
    this.hovered = row;
    this.mark();
    this.onHover(row);
  }

  private click(spot: Spot): void {
    const row = this.at(spot);
    if (row !== NO_ROW) this.model.setFocus(row);
  }

  private drawLasso(polygon: Spot[]): void {
    this.lasso = polygon;
    this.mark();
  }

  private endLasso(polygon: Spot[] | null): void {
    this.lasso = null;
    this.mark();
    if (polygon === null) return;
    const corners = polygon.flatMap(([left, top]) => this.camera.toMap(left, top));
    this.model.pick(this.index.inside(corners, (slot) => this.state[STATE_BYTES * slot + 3] === 1), "lassoed");
  }

  /** What stands above the points: the lasso, rings around samples and lines to neighbours. */
  private mark(): void {
    const parts: SVGElement[] = [];
    if (this.lasso !== null) {
      parts.push(svg("polygon", { class: "lasso", points: this.lasso.map((spot) => spot.join()).join(" ") }));
    }
    const hovered = this.hovered === NO_ROW ? undefined : this.position(this.hovered);
    if (hovered !== undefined) parts.push(svg("circle", { cx: hovered[0], cy: hovered[1], r: 6, class: "hovered" }));
    const at = this.model.focus === NO_ROW ? undefined : this.position(this.model.focus);
    if (at !== undefined) {
      const [cx, cy] = at;
      for (const row of this.linked) {
        const to = this.position(row);
        if (to === undefined) continue;
        parts.push(svg("line", { x1: cx, y1: cy, x2: to[0], y2: to[1] }), svg("circle", { cx: to[0], cy: to[1], r: 4, class: "near" }));
      }
      parts.push(svg("circle", { cx, cy, r: 9, class: "ring" }));
    }
    if (parts.length > 0 || this.marks.childElementCount > 0) this.marks.replaceChildren(...parts);
  }
}

/**
 * WebGL2 on a graphics processor; where there is none, a 2D canvas. `?graphics=webgl2` and
 * `?graphics=canvas` choose one of them.
 */
function createRenderer(canvas: HTMLCanvasElement, restored: () => void): PointRenderer {
  const asked = new URL(location.href).searchParams.get("graphics");
  if (asked === "webgl2" || (asked !== "canvas" && hasGraphics())) {
    const gl = canvas.getContext("webgl2", { antialias: false, depth: false });
    if (gl !== null) return new WebGLRenderer(gl, restored);
  }
  const context = canvas.getContext("2d");
  if (context === null) throw new Error("This browser has neither WebGL2 nor a 2D canvas.");
  return new RasterRenderer(context);
}

/** Whether WebGL2 runs on a graphics processor, and is not emulated. */
function hasGraphics(): boolean {
  // On a canvas of its own: one that was asked for WebGL cannot become a 2D canvas.
  const gl = document.createElement("canvas").getContext("webgl2", { failIfMajorPerformanceCaveat: true });
  if (gl === null) return false;
  const names = gl.getExtension("WEBGL_debug_renderer_info");
  const name = String(gl.getParameter(names === null ? gl.RENDERER : names.UNMASKED_RENDERER_WEBGL));
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  return !/swiftshader|llvmpipe|softpipe|software|basic render/i.test(name);
}

/** CSS pixels across, so that many points do not cover one another. */
export function pointSize(n: number): number {
  if (n > 500_000) return 1;
  if (n > 100_000) return 1.5;
  if (n > 20_000) return 2.4;
  if (n > 4_000) return 4;
  return n > 300 ? 6 : 9;
}

/** Whether the person wants nothing to glide. */
function still(): boolean {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}
