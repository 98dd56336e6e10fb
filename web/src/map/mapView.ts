/** The map: one point per sample. Decides what to draw and when; a renderer draws it. */

import { encode, type Encoding } from "../colours";
import { h, perFrame, svg } from "../dom";
import { NO_ROW, type Model } from "../model";
import { isDark } from "../theme";
import { Camera, interpolate, type Insets, type View } from "./camera";
import { createRenderer } from "./createRenderer";
import { density } from "./density";
import { Gestures, type Mode, type Position } from "./gestures";
import { PointIndex, type Range } from "./pointIndex";
import { parseColour, STATE_BYTES, type Frame, type Pass, type PointRenderer, type Rgb, type Style } from "./renderer";

/** With more points, rings are too small to see. */
export const MAX_RINGS = 300_000;
/** More picked points are not drawn again on top of the others. */
const MAX_HIGHLIGHTED = 200_000;
/** More picked points have no outline. */
const MAX_OUTLINED = 3_000;
/** Pixels by which a ring is larger than a disc, so that its hole is visible; the same for decisions by hand. */
const RING_EXTRA = 3.5;
const HAND_EXTRA = 2.5;
const DIMMED = 0.3;
/** Time for a frame while something changes; if all points take longer, a sample of them is drawn. */
const MOVING_MS = 50;
const MIN_SAMPLE = 50_000;
/** All points are drawn when nothing has changed for this long. */
const STILL_MS = 250;
/** Delay before the time of a frame is measured, so that the first one is visible early. */
const MEASURE_DELAY_MS = 200;
const TRANSITION_MS = 250;
const WHEEL_MS = 110;
const MARGIN_PX = 18;
/** Side of a cell of the density in CSS pixels; the style sheet scales it up. */
const DENSITY_PX = 3;

export class MapView {
  readonly element: HTMLElement;
  /** Called with the row under the pointer, or `NO_ROW`. */
  onHover: (row: number) => void = () => undefined;
  onEncoded: (encoding: Encoding) => void = () => undefined;
  /** Pixels at the edges that are covered; the map is fitted between them. */
  insets: () => Insets = () => ({ top: 0, right: 0, bottom: 0, left: 0 });
  private readonly canvas: HTMLCanvasElement;
  private readonly densityCanvas = h("canvas", { className: "density", hidden: true, "aria-hidden": "true" });
  private readonly marks = svg("svg", { class: "marks", "aria-hidden": "true" });
  private readonly index: PointIndex;
  /** Colour, state and visibility by row, and the same by slot up to `copied`. */
  private readonly byRow: Uint32Array;
  private readonly state: Uint8Array<ArrayBuffer>;
  private copied = 0;
  private readonly camera = new Camera();
  private renderer: PointRenderer | null = null;
  private gestures: Gestures | null = null;
  private style: Style | null = null;
  /** Rows connected to the focused one by lines. */
  private neighbours: number[] = [];
  private hovered = NO_ROW;
  private lasso: Position[] | null = null;
  private highlighted: Uint32Array<ArrayBuffer> | null = null;
  private showDensity = false;
  /** Colours or visibility have changed since the last frame. */
  private stale = true;
  private waiting: (() => void)[] = [];
  /** The whole map is shown; it is fitted again when the size changes. */
  private fitted = true;
  private transition = 0;
  private ratio = 1;
  /** How many points are drawn while something changes, and how many now. */
  private sampleSize = Infinity;
  private limit = Infinity;
  private stillTimer = 0;
  private readonly frame = perFrame(() => this.paint());

  constructor(private readonly model: Model) {
    const label = "Map of the samples. Drag to move, wheel to zoom, shift and drag to lasso. The gallery lists the same samples for the keyboard.";
    this.canvas = h("canvas", { className: "points", role: "img", "aria-label": label });
    this.element = h("div", { className: "map" }, this.densityCanvas, this.canvas, this.marks);
    this.index = new PointIndex(model.x, model.y);
    this.byRow = new Uint32Array(model.n);
    this.state = new Uint8Array(STATE_BYTES * model.n);
    model.on(["decisions", "preview", "colour", "theme", "comparison", "neighbourhood", "dropped", "filter"], () => this.redraw());
    model.on(["picked"], () => {
      this.highlight();
      this.frame();
    });
    model.on(["focus"], () => this.drawMarks());
  }

  /** Start drawing; the element must be in the document because its size is needed. */
  start(): void {
    if (this.model.n === 0) return;
    this.renderer = createRenderer(this.canvas, () => this.frame());
    this.renderer.setPositions(this.index.xy as Float32Array<ArrayBuffer>);
    this.element.dataset["renderer"] = this.renderer.kind;
    this.gestures = new Gestures(this.canvas, {
      pan: (dx, dy) => this.move(() => this.camera.panBy(dx, dy)),
      zoom: (left, top, factor, jump) => this.zoom(left, top, factor, jump),
      hover: (position) => this.hover(position),
      click: (position) => this.click(position),
      lassoMove: (polygon) => this.setLasso(polygon),
      lassoEnd: (polygon) => this.endLasso(polygon),
    });
    // Colours first: the legend covers a part of the map.
    this.recolour();
    this.resize();
    new ResizeObserver(() => this.resize()).observe(this.element);
    this.watchRatio();
    if (this.model.n > MIN_SAMPLE) window.setTimeout(() => this.measureFrame(), MEASURE_DELAY_MS);
    else this.element.dataset["indexed"] = String(this.model.n);
  }

  setMode(mode: Mode): void {
    if (this.gestures !== null) this.gestures.mode = mode;
    this.element.classList.toggle("lasso-mode", mode === "lasso");
  }

  setDensity(on: boolean): void {
    this.showDensity = on;
    this.densityCanvas.hidden = !on;
    this.frame();
  }

  /** Show the whole map. */
  fit(): void {
    this.moveTo(this.wholeView(), TRANSITION_MS, () => (this.fitted = true));
  }

  /** The position of a sample in pixels from the top left corner of the map. */
  position(row: number): [number, number] | undefined {
    return this.renderer === null ? undefined : this.camera.toScreen(...this.index.position(row));
  }

  setNeighbours(rows: number[]): void {
    this.neighbours = rows;
    this.drawMarks();
  }

  /** Resolves once the map shows the state of the model. */
  drawn(): Promise<void> {
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
    this.moving();
    this.frame();
  }

  /** Draw a frame: the colours if they changed, the points, and what is above them. */
  private paint(): void {
    const { renderer } = this;
    if (renderer === null) return;
    if (this.stale) this.recolour();
    this.draw(renderer);
    this.drawMarks();
    this.element.dataset["drawn"] = "true";
    delete this.element.dataset["stale"];
    for (const resolve of this.waiting.splice(0)) resolve();
  }

  private draw(renderer: PointRenderer): void {
    const { camera, ratio, style } = this;
    if (style === null) return;
    const growth = this.growth();
    const sizes = style.sizes.map((size) => size * growth) as Style["sizes"];
    const margin = Math.max(...sizes) / 2 + 2;
    const ranges = this.index.ranges(camera.box(margin), this.limit);
    const last = ranges[ranges.length - 1];
    this.copyState(this.highlighted !== null ? this.model.n : last === undefined ? 0 : last.start + last.count);
    const [left, top] = camera.toScreen(0, 0);
    const frame: Frame = {
      scale: camera.scale * ratio,
      left: left * ratio,
      top: top * ratio,
      ratio,
      style: { ...style, sizes, background: this.showDensity ? null : style.background },
      passes: this.passes(ranges),
    };
    renderer.draw(frame);
    if (this.showDensity) this.drawDensity(ranges, style.palette);
  }

  private passes(ranges: Range[]): Pass[] {
    const { highlighted } = this;
    const all: Pass[] = this.showDensity ? [] : [{ slots: ranges, opacity: highlighted === null ? 1 : DIMMED, grow: 0 }];
    if (highlighted === null) return all;
    if (highlighted.length > MAX_OUTLINED) return [...all, { slots: highlighted, opacity: 1, grow: 0.5 }];
    const outline: Rgb = isDark() ? [255, 255, 255] : [17, 20, 24];
    return [...all, { slots: highlighted, opacity: 1, grow: 4.5, colour: outline }, { slots: highlighted, opacity: 1, grow: 1.5 }];
  }

  /** Fill the canvas of the density, which the browser scales up smoothly. */
  private drawDensity(ranges: Range[], palette: Rgb[]): void {
    const [left, top] = this.camera.toScreen(0, 0).map((at) => at / DENSITY_PX) as Position;
    const [width, height] = [this.camera.width, this.camera.height].map((size) => Math.ceil(size / DENSITY_PX)) as Position;
    const view = { scale: this.camera.scale / DENSITY_PX, left, top, width, height };
    const image = new ImageData(density(this.index, this.state, palette, ranges, view), width, height);
    this.densityCanvas.width = width;
    this.densityCanvas.height = height;
    this.densityCanvas.getContext("2d")?.putImageData(image, 0, 0);
  }

  /** Update colours and visibility. */
  private recolour(): void {
    this.stale = false;
    const encoding = encode(this.model);
    this.onEncoded(encoding);
    const { index, state } = encoding;
    const visible = this.model.visible();
    for (let row = 0; row < this.byRow.length; row++) {
      const shown = visible === null ? 1 : (visible[row] as number);
      this.byRow[row] = (index[row] as number) | ((state[row] as number) << 16) | (shown << 24);
    }
    this.copied = 0;
    const size = pointSize(this.model.n);
    this.style = {
      palette: encoding.palette.map(parseColour),
      opacity: encoding.opacity,
      sizes: [size, size, size + HAND_EXTRA, size + RING_EXTRA],
      background: parseColour(isDark() ? "#14171c" : "#fbfbf9"),
    };
    this.highlight();
  }

  /** Copy the states of the slots before `end`: while a sample is drawn, the others can wait. */
  private copyState(end: number): void {
    if (end <= this.copied) return;
    const bySlot = new Uint32Array(this.state.buffer);
    const { rows } = this.index;
    for (let slot = this.copied; slot < end; slot++) bySlot[slot] = this.byRow[rows[slot] as number] as number;
    this.copied = end;
    this.renderer?.setState(this.state);
  }

  private isVisible(slot: number): boolean {
    return this.state[STATE_BYTES * slot + 3] === 1;
  }

  /** Highlight the picked points. */
  private highlight(): void {
    const { picked } = this.model;
    if (picked === null || picked.rows.length > MAX_HIGHLIGHTED) this.highlighted = null;
    else this.highlighted = Uint32Array.from(picked.rows, (row) => this.index.slots[row] ?? 0).sort();
  }

  /** Factor of the size of points; they grow less than the map when one zooms in. */
  private growth(): number {
    return Math.asinh(Math.max(1, this.camera.zoom)) / Math.asinh(1);
  }

  // Moving -------------------------------------------------------------------------------------

  /** Change the view directly. */
  private move(change: () => void): void {
    this.transition++;
    this.fitted = false;
    change();
    this.moving();
    this.frame();
  }

  private zoom(left: number, top: number, factor: number, jump: boolean): void {
    const from = this.camera.view;
    this.move(() => this.camera.zoomAt(left, top, factor));
    if (!jump || reducedMotion()) return;
    const to = this.camera.view;
    this.camera.set(from);
    this.moveTo(to, WHEEL_MS);
  }

  /** Animate to a view. A newer movement ends it. */
  private moveTo(to: View, duration: number, done: () => void = () => undefined): void {
    const turn = ++this.transition;
    const from = this.camera.view;
    const begun = performance.now();
    const step = (): void => {
      if (turn !== this.transition) return;
      const share = reducedMotion() ? 1 : Math.min(1, (performance.now() - begun) / duration);
      this.camera.set(share === 1 ? to : interpolate(from, to, 1 - (1 - share) ** 2));
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
    const ratio = window.devicePixelRatio || 1;
    if (width === camera.width && height === camera.height && ratio === this.ratio) return;
    this.ratio = ratio;
    camera.width = width;
    camera.height = height;
    const view = this.wholeView();
    if (this.fitted) camera.set(view);
    renderer.resize(Math.round(width * ratio), Math.round(height * ratio));
    // Now, since a canvas of a new size is empty.
    this.paint();
  }

  private watchRatio(): void {
    const changed = (): void => {
      this.resize();
      this.watchRatio();
    };
    matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`).addEventListener("change", changed, { once: true });
  }

  /** The view of the whole map; zoom is relative to it. */
  private wholeView(): View {
    const { top, right, bottom, left } = this.insets();
    const insets = { top: top + MARGIN_PX, right: right + MARGIN_PX, bottom: bottom + MARGIN_PX, left: left + MARGIN_PX };
    const view = this.camera.viewOf(this.index.bounds, insets);
    this.camera.fittedScale = view.scale;
    return view;
  }

  /** If all points take too long, draw a sample until nothing has changed for a while. */
  private moving(): void {
    if (this.sampleSize === Infinity) return;
    this.limit = this.sampleSize;
    this.element.dataset["thinned"] = "true";
    window.clearTimeout(this.stillTimer);
    this.stillTimer = window.setTimeout(() => {
      this.limit = Infinity;
      delete this.element.dataset["thinned"];
      this.frame();
    }, STILL_MS);
  }

  /** Measure a frame with all points, and choose how many to draw while something changes. */
  private measureFrame(): void {
    const { renderer } = this;
    if (renderer === null) return;
    renderer.finish();
    const begun = performance.now();
    this.draw(renderer);
    renderer.finish();
    const took = performance.now() - begun;
    this.element.dataset["frameMs"] = took.toFixed(0);
    if (took > MOVING_MS) this.sampleSize = Math.max(MIN_SAMPLE, Math.round((this.model.n * MOVING_MS) / took));
    this.element.dataset["indexed"] = String(Math.min(this.sampleSize, this.model.n));
  }

  // Picking ------------------------------------------------------------------------------------

  private rowAt([left, top]: Position): number {
    const reach = Math.max(6, (pointSize(this.model.n) * this.growth()) / 2 + 3);
    const [x, y] = this.camera.toMap(left, top);
    this.copyState(this.model.n);
    return this.index.nearest(x, y, reach / this.camera.scale, (slot) => this.isVisible(slot));
  }

  private hover(position: Position | null): void {
    const row = position === null ? NO_ROW : this.rowAt(position);
    if (row === this.hovered) return;
    this.hovered = row;
    this.drawMarks();
    this.onHover(row);
  }

  private click(position: Position): void {
    const row = this.rowAt(position);
    if (row !== NO_ROW) this.model.setFocus(row);
  }

  private setLasso(polygon: Position[] | null): void {
    this.lasso = polygon;
    this.drawMarks();
  }

  private endLasso(polygon: Position[] | null): void {
    this.setLasso(null);
    if (polygon === null) return;
    const corners = polygon.flatMap(([left, top]) => this.camera.toMap(left, top));
    this.copyState(this.model.n);
    this.model.pick(this.index.inside(corners, (slot) => this.isVisible(slot)), "lassoed");
  }

  /** Draw what is above the points: the lasso, rings around samples and lines to neighbours. */
  private drawMarks(): void {
    const parts: SVGElement[] = [];
    if (this.lasso !== null) {
      parts.push(svg("polygon", { class: "lasso", points: this.lasso.map((corner) => corner.join()).join(" ") }));
    }
    const hovered = this.hovered === NO_ROW ? undefined : this.position(this.hovered);
    if (hovered !== undefined) parts.push(svg("circle", { cx: hovered[0], cy: hovered[1], r: 6, class: "hovered" }));
    const at = this.model.focus === NO_ROW ? undefined : this.position(this.model.focus);
    if (at !== undefined) {
      const [cx, cy] = at;
      for (const row of this.neighbours) {
        const to = this.position(row);
        if (to === undefined) continue;
        parts.push(svg("line", { x1: cx, y1: cy, x2: to[0], y2: to[1] }), svg("circle", { cx: to[0], cy: to[1], r: 4, class: "near" }));
      }
      parts.push(svg("circle", { cx, cy, r: 9, class: "ring" }));
    }
    if (parts.length > 0 || this.marks.childElementCount > 0) this.marks.replaceChildren(...parts);
  }
}

/** Diameter in CSS pixels: many points are small, so that they do not cover one another. */
function pointSize(n: number): number {
  if (n > 500_000) return 1;
  if (n > 100_000) return 1.5;
  if (n > 20_000) return 2.4;
  if (n > 4_000) return 4;
  return n > 300 ? 6 : 9;
}

function reducedMotion(): boolean {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}
